"""Charges that move: for a while after the end of a round was charged, better evidence revises the charge.

Several parties see the loss of a pod, and the one that explains most often comes last: heartbeats stop, then
the node turns out to be gone; a container is killed, then its pod turns out to be preempted. The round is
broken and charged for the first sign, because nothing waits for explanations. Later the charge changes its
cause and its account. Its round is its key, so that it stays one charge.

What happens to a pod after the operator has given it up explains nothing: its deletion, or that its container
was killed. What counts is what others report: out of memory, the condition DisruptionTarget, the node's
state, and a worker failure that was earlier than the one that was charged. Once the next round has formed,
what happens to a pod that has rejoined belongs to that round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticjob.rounds.causes import Cause, better
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan import ends, members, rules
from elasticjob_operator.plan.causes import NEVER_CHARGED, Evidence, explains_more
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.failures import cut, enforce, failure_of, settle_pod
from elasticjob_operator.plan.model import Rule
from elasticjob_operator.plan.status import Absent, Account, Charge, Failure, RoundHistory

MOVE_SECONDS = 120
"""How long after a charge better evidence moves it, by wall time: members are found silent after 10 s, and
the control plane says NotReady of their node after 40 to 50 s."""

RESTART_SECONDS = 5.0
"""How much later than the restart of a container its kubelet may say how the former one had ended; after that
it is the end of another."""

MAX_ABSENT = 20


def revise(p: Pass, evidence: Sequence[Evidence] = ()) -> None:
    """Move the charge for the last root failure if something explains it better by now.

    ``evidence`` is what speaks against the members of a round that has ended; only what concerns the pod of
    the root failure counts, the others are failures of their own.
    """
    _revise_absent(p)
    failure = p.status.last_failure
    if failure is None or failure.round is None:
        return
    account, charge = _charge_for(p, failure.round)
    if account is None or charge is None:
        return
    theirs = [sign for sign in evidence if sign.uid == failure.uid and failure.uid]
    if _came_back(p, failure):
        theirs = []
    for sign in (*theirs, *_hindsight(p, failure, charge)):
        rule = rules.match(p.job.spec.rules, sign)
        worse = _report_of(p, failure)
        if explains_more(sign.cause, rule is not None, sign.milliseconds, charge.cause, False, worse):
            _move(p, account, charge, sign, rule)
            return


def _revise_absent(p: Pass) -> None:
    """Members that a round did not wait for: forget those heard of since, and those that explain nothing."""
    pending = []
    for entry in p.round.absent:
        account, charge = _charge_for(p, entry.round)
        if account is None or charge is None or _heard_of(p, entry):
            pod = p.pods_by_uid.get(entry.uid)
            if pod is not None and (pod.ended or pod.exit is not None):
                settle_pod(p, entry.uid)  # its end was that round's
            continue
        pending.append(entry)  # also one that is lost for certain: its end is that round's
        sign = _what_became_of(p, entry)
        if sign is not None and better(sign.cause, charge.cause):
            _move(p, account, charge, sign, rules.match(p.job.spec.rules, sign), pod=entry.pod)
    if len(pending) != len(p.round.absent):
        p.set_round(absent=tuple(pending))


def absent(p: Pass, joined: set[str]) -> tuple[Absent, ...]:
    """Whom the status has to remember when a round is published: members of the one before of which nothing
    was heard, while the loss of a peer would explain its end better than what did."""
    if p.round.charged is None or not better(Cause.DID_NOT_REJOIN, p.round.cause):
        return p.round.absent
    fresh = tuple(
        Absent(m.pod, m.uid, p.round.number, m.rank)
        for m in p.status.members()
        if m.state == MemberState.MEMBER and m.uid not in joined
    )
    return (*p.round.absent, *fresh)[-MAX_ABSENT:]


def _charge_for(p: Pass, number: int) -> tuple[Account | None, Charge | None]:
    """The charge for this round and its account, if it may still move."""
    for account in p.status.accounts:
        for charge in account.charges:
            if charge.round == number and (p.now.wall - charge.time).total_seconds() <= MOVE_SECONDS:
                return account, charge
    return None, None


def _heard_of(p: Pass, entry: Absent) -> bool:
    """Whether this member has announced itself since its round ended."""
    lease = p.lease_of(entry.uid)
    record = lease.record if lease is not None else None
    return record is not None and record.last_job_uid == p.job.uid and record.last_round >= entry.round


def _came_back(p: Pass, failure: Failure) -> bool:
    """Whether the pod of the root failure has announced itself for the round after, which has been formed:
    what becomes of it now is of that round, or of a later one, even where that ended for something else."""
    lease = p.lease_of(failure.uid)
    record = lease.record if lease is not None else None
    number = failure.round or 0
    return record is not None and number < p.round.number and record.seen(p.job.uid) >= number


def _what_became_of(p: Pass, entry: Absent) -> Evidence | None:
    """That a member which was not waited for is lost, and had been when its peers' workers failed."""
    pod = p.pods_by_uid.get(entry.uid)
    if pod is None:
        return None
    who = f"{entry.pod} (group rank {entry.rank})"
    sign = ends.second_thoughts(p, pod, who, Cause.DID_NOT_REJOIN, entry.rank)
    if sign is None and pod.exit is not None and pod.exit.code != 0 and not pod.deleting:
        return ends.ended(p, pod, who, entry.rank)
    if sign is None and p.superseded(pod):
        text = f"{who} did not rejoin after round {entry.round}"
        return Evidence(Cause.DID_NOT_REJOIN, text, pod.name, entry.rank, uid=pod.uid, node=pod.node)
    return sign


def _hindsight(p: Pass, failure: Failure, charge: Charge) -> list[Evidence]:
    """What is known by now of the root failure."""
    found = []
    pod = p.pods_by_uid.get(failure.uid)
    who = failure.pod if failure.rank is None else f"{failure.pod} (group rank {failure.rank})"
    if pod is not None:
        if not _came_back(p, failure):
            found.append(ends.second_thoughts(p, pod, who, charge.cause, failure.rank))
        age = (p.now.wall - charge.time).total_seconds()
        ended_last = pod.restarts == failure.restarts + 1
        if charge.cause == Cause.POD_RESTARTED and ended_last and age <= RESTART_SECONDS:
            found.append(members.killed_for_memory(pod, who, failure.rank))
    if charge.cause == Cause.WORKER_FAILED and failure.round is not None:
        found.append(_earlier_failure(p, failure, failure.round))
    return [sign for sign in found if sign is not None]


def _report_of(p: Pass, failure: Failure) -> int | None:
    """When the worker that was charged for failed, if its agent still says so."""
    lease = p.lease_of(failure.uid)
    report = lease.failure if lease is not None else None
    return report.milliseconds if report is not None and report.number == failure.round else None


def _earlier_failure(p: Pass, failure: Failure, number: int) -> Evidence | None:
    """The first worker failure of that round, if it is another than that which was charged: its agent was
    slow to stop the others, and the next round, with a spare in its place, did not wait for it.

    Pods of others may have lived with a job of the same name: their word counts if they come from that round.
    """
    charged = _report_of(p, failure)
    if charged is None:
        return None
    first: Evidence | None = None
    for pod in p.observed.pods:
        lease = p.participant(pod) if pod.mine and pod.uid != failure.uid else None
        report = lease.failure if lease is not None else None
        if report is None or report.number != number or report.late or report.milliseconds is None:
            continue
        record = lease.record if lease is not None else None
        came = record is not None and (record.last_job_uid, record.last_round) == (p.job.uid, number)
        if p.job.spec.template is None and not came:
            continue
        if report.milliseconds < charged and (
            first is None or report.milliseconds < (first.milliseconds or 0)
        ):
            first = members.worker_failure(report, pod.name, report.rank, pod.uid, pod.node)
    return first


def _move(
    p: Pass, account: Account, charge: Charge, sign: Evidence, rule: Rule | None, pod: str = ""
) -> None:
    to, message = rules.account(rule, sign), sign.message + rules.effect(rule)
    moved = replace(charge, cause=sign.cause, node=sign.node, message=cut(message), pod=pod or charge.pod)
    accounts = []
    for a in p.status.accounts:
        without = replace(a, charges=tuple(c for c in a.charges if c != charge))
        accounts.append(without.charged(moved) if a.name == to else without)
    p.set(accounts=tuple(accounts), restarts=p.status.restarts - (not to))
    failure = failure_of(p, sign, charge.round)
    last = p.status.last_failure
    if last is not None and last.round == charge.round:
        p.set(last_failure=replace(failure, time=last.time))
    _rewrite(p, charge, last, sign, rule)
    p.event(
        "ChargeMoved",
        f"the charge for the end of round {charge.round} moved from {account.name} ({charge.cause}) "
        f"to {to or 'no account'} ({sign.cause}): {message}",
    )
    enforce(p, rule, failure, message)


def _rewrite(p: Pass, charge: Charge, last: Failure | None, sign: Evidence, rule: Rule | None) -> None:
    """Say the same in the history, and in the round itself."""
    number = charge.round or 0
    to = rules.account(rule, sign)
    name = rule.name if rule is not None else ""
    formed = [entry for entry in p.status.rounds if entry.number > number][-1:]
    for entry in formed:
        before = charge.message
        if last is not None and last.round == number:  # the whole sentence
            before = last.message + rules.effect(rules.named(p.job.spec.rules, entry.rule))
        rest = entry.message[len(before) :] if entry.message.startswith(before) else ""
        text = sign.message + rules.effect(rule) + rest
        new: RoundHistory = replace(entry, cause=sign.cause, account=to, rule=name, message=text)
        p.set(rounds=tuple(new if h is entry else h for h in p.status.rounds))
        if entry.number == p.round.number and p.round.phase == "Active":
            p.set_round(cause=sign.cause, account=to, message=text)
    if number == p.round.number and p.round.phase == "Broken" and p.round.cause not in NEVER_CHARGED:
        p.set_round(
            cause=sign.cause,
            account=to,
            rule=name,
            message=sign.message + rules.effect(rule),
            root_milliseconds=sign.milliseconds,
        )
