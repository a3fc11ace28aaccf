"""Charge revision: for a while after the end of a round was charged, better evidence replaces the cause.

Several parties see the loss of a pod, and the one that explains most often comes last: heartbeats stop, then
the node turns out to be gone; a container is killed, then its pod turns out to be preempted. The round is
broken and charged for what is seen first, because nothing waits for explanations. Later the charge changes
its cause and its account. Its round is its key, so that it stays one charge.

What happens to a pod after the operator has marked it lost explains nothing: its deletion, or that its
container was killed. What counts is what others report: out of memory, the condition DisruptionTarget, the
node's state, and a worker failure that was earlier than the one that was charged. Once the next round has
formed, what happens to a pod that has rejoined belongs to that round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from elasticjob.rounds.causes import Cause, better
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.charges import failure_rules
from elasticjob_operator.plan.charges.charging import cut, enforce, failure_of, mark_charged
from elasticjob_operator.plan.losses import excluded_nodes, failure_reports, pod_ends
from elasticjob_operator.plan.state.evidence import NEVER_CHARGED, Evidence, explains_more
from elasticjob_operator.plan.state.model import Pod, Rule
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.restart_accounts import Account, Charge
from elasticjob_operator.plan.state.status import Failure, RoundEnd, UnaccountedMember

REVISION_WINDOW_SECONDS = 120
"""How long after a charge better evidence revises it, by wall time: members are found silent after 10 s, and
the control plane says NotReady of their node after 40 to 50 s."""

RESTART_SECONDS = 5.0
"""How much later than the restart of a container its kubelet may say how the former one had ended; after that
it is the end of another."""

MAX_UNACCOUNTED = 20

_LIVES_ON = frozenset({Cause.HANG, Cause.WORKER_FAILED, Cause.POD_RESTARTED})
"""Causes that leave the pod of the root failure in place: it joins the next round."""


def revise(p: Pass, evidence: Sequence[Evidence] = ()) -> str:
    """Revise the charge for the last root failure if something explains it better by now.

    ``evidence`` is what speaks against the members of a round that has ended; only what concerns the pod of
    the root failure counts, the others are failures of their own. Returns why a failure rule ends the job, ""
    if none does.
    """
    failed_by_rule = _revise_unaccounted(p)
    failure = p.status.last_failure
    if failure is None or failure.round is None:
        return failed_by_rule
    account, charge = _charge_for(p, failure.round)
    if account is None or charge is None:
        return failed_by_rule
    of_root = [found for found in evidence if found.pod_uid == failure.pod_uid and failure.pod_uid]
    if _came_back(p, failure):
        of_root = []
    for found in (*of_root, *_later_evidence(p, failure, charge)):
        rule = failure_rules.first_matching_rule(p.job.spec.rules, found)
        worse = _report_of(p, failure)
        if explains_more(found.cause, rule is not None, found.milliseconds, charge.cause, False, worse):
            return _revise_charge(p, account, charge, found, rule) or failed_by_rule
    return failed_by_rule


def _revise_unaccounted(p: Pass) -> str:
    """Members that a round did not wait for: forget those heard of since, and those that explain nothing."""
    pending, failed_by_rule = [], ""
    for entry in p.round.unaccounted_members:
        account, charge = _charge_for(p, entry.round)
        if account is None or charge is None or _heard_of(p, entry):
            pod = p.pods_by_uid.get(entry.pod_uid)
            if pod is not None and (pod.ended or pod.exit is not None):
                mark_charged(p, entry.pod_uid)  # its end was that round's
            continue
        pending.append(entry)  # also one that is lost for certain: its end is that round's
        evidence = _what_became_of(p, entry)
        if evidence is not None and better(evidence.cause, charge.cause):
            rule = failure_rules.first_matching_rule(p.job.spec.rules, evidence)
            revised = _revise_charge(p, account, charge, evidence, rule, pod=entry.pod_name)
            failed_by_rule = revised or failed_by_rule
    if len(pending) != len(p.round.unaccounted_members):
        p.set_round(unaccounted_members=tuple(pending))
    return failed_by_rule


def unaccounted_members(p: Pass, joined: set[str]) -> tuple[UnaccountedMember, ...]:
    """What the status has to remember when a round is published: members of the one before of which nothing
    was heard. The loss of one may explain its end better than what did, and is that round's in any case."""
    if p.round.charged_time is None:
        return p.round.unaccounted_members
    fresh = tuple(
        UnaccountedMember(m.pod_name, m.pod_uid, p.round.number, m.group_rank)
        for m in p.status.members()
        if m.state == MemberState.MEMBER and m.pod_uid not in joined
    )
    return (*p.round.unaccounted_members, *fresh)[-MAX_UNACCOUNTED:]


def forget(p: Pass, pod_uids: Collection[str]) -> None:
    """The operator deletes these pods, and not because they were silent: that explains no former round. Nor
    has their end a charge of its own, where the deletion is refused and they end before it."""
    gone = [entry for entry in p.round.unaccounted_members if entry.pod_uid in pod_uids]
    for entry in gone:
        mark_charged(p, entry.pod_uid)
    if gone:
        p.set_round(unaccounted_members=tuple(e for e in p.round.unaccounted_members if e not in gone))


def _charge_for(p: Pass, number: int) -> tuple[Account | None, Charge | None]:
    """The charge for this round and its account, if it may still be revised."""
    for account in p.status.accounts:
        for charge in account.charges:
            if (
                charge.round == number
                and (p.now.wall - charge.time).total_seconds() <= REVISION_WINDOW_SECONDS
            ):
                return account, charge
    return None, None


def _heard_of(p: Pass, entry: UnaccountedMember) -> bool:
    """Whether this member has announced itself since its round ended."""
    lease = p.lease_of(entry.pod_uid)
    record = lease.record if lease is not None else None
    number = p.number_when_formed(entry.round)
    return record is not None and record.from_job_uid == p.job.uid and record.from_round >= number


def _came_back(p: Pass, failure: Failure) -> bool:
    """Whether the pod of the root failure has announced itself for the round after, which has been formed:
    what becomes of it now is of that round, or of a later one, even where that ended for something else."""
    lease = p.lease_of(failure.pod_uid)
    record = lease.record if lease is not None else None
    number = failure.round or 0
    return record is not None and number < p.round.number and record.seen(p.job.uid) >= number


def _what_became_of(p: Pass, entry: UnaccountedMember) -> Evidence | None:
    """Evidence that a member that was not waited for is lost, and was when its peers' workers failed."""
    pod = p.last_seen(entry.pod_uid)
    who = f"{entry.pod_name} (group rank {entry.group_rank})"
    away = Evidence(
        Cause.DID_NOT_REJOIN,
        f"{who} did not rejoin after round {entry.round}",
        entry.pod_name,
        entry.group_rank,
        pod_uid=entry.pod_uid,
    )
    evidence = pod_ends.final_evidence(p, pod, who, away.cause, entry.group_rank) if pod is not None else None
    if evidence is not None:
        return evidence
    if pod is None or entry.pod_uid not in p.pods_by_uid:
        return replace(away, message=f"{away.message}, and its pod is gone")
    return replace(away, node_name=pod.node) if p.is_replaced(pod) else None


def _later_evidence(p: Pass, failure: Failure, charge: Charge) -> list[Evidence]:
    """The evidence on the root failure that has come since."""
    found = []
    pod = _pod_of_root(p, failure, charge)
    who = (
        failure.pod_name
        if failure.group_rank is None
        else f"{failure.pod_name} (group rank {failure.group_rank})"
    )
    if pod is not None:
        if not _came_back(p, failure):
            found.append(pod_ends.later_evidence(p, pod, who, charge.cause, failure.group_rank))
        age = (p.now.wall - charge.time).total_seconds()
        ended_last = pod.restarts == failure.container_restarts + 1
        if charge.cause == Cause.POD_RESTARTED and ended_last and age <= RESTART_SECONDS:
            found.append(failure_reports.killed_for_memory(pod, who, failure.group_rank))
    if charge.cause == Cause.WORKER_FAILED and failure.round is not None:
        found.append(_earlier_failure(p, failure, failure.round))
    return [evidence for evidence in found if evidence is not None]


def _pod_of_root(p: Pass, failure: Failure, charge: Charge) -> Pod | None:
    """The pod of the root failure. One that is gone, and its Lease with it, counts unless it may have been in
    the round that has formed since: what took it away is then of that round."""
    uid = failure.pod_uid
    later = failure.round != p.round.number
    if later and (charge.cause in _LIVES_ON or uid in p.status.member_uids):
        return p.pods_by_uid.get(uid)
    return p.last_seen(uid)


def _report_of(p: Pass, failure: Failure) -> int | None:
    """When the worker that was charged for failed, if its agent still says so."""
    lease = p.lease_of(failure.pod_uid)
    report = lease.failure if lease is not None else None
    ours = report is not None and report.of(p.job.uid, failure.round)
    return report.offset_milliseconds if report is not None and ours else None


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
        lease = p.participant(pod) if pod.of_this_job and pod.uid != failure.pod_uid else None
        report = lease.failure if lease is not None else None
        if (
            report is None
            or not report.of(p.job.uid, number)
            or report.after_round_end
            or report.offset_milliseconds is None
        ):
            continue
        record = lease.record if lease is not None else None
        came = record is not None and (record.from_job_uid, record.from_round) == (p.job.uid, number)
        if p.job.spec.template is None and not came:
            continue
        if report.offset_milliseconds < charged and (
            first is None or report.offset_milliseconds < (first.milliseconds or 0)
        ):
            first = failure_reports.worker_failure(report, pod.name, report.group_rank, pod.uid, pod.node)
    return first


def _revise_charge(
    p: Pass, account: Account, charge: Charge, evidence: Evidence, rule: Rule | None, pod: str = ""
) -> str:
    to, message = (
        failure_rules.account(rule, evidence),
        evidence.message + failure_rules.describe_effect(rule),
    )
    moved = replace(
        charge,
        cause=evidence.cause,
        node_name=excluded_nodes.suspected(evidence.cause, evidence.exit_code, evidence.node_name),
        message=cut(message),
        pod_name=pod or charge.pod_name,
    )
    if (to, moved) == (account.name, charge):
        return ""  # nothing new
    accounts = []
    for a in p.status.accounts:
        without = replace(a, charges=tuple(c for c in a.charges if c != charge))
        accounts.append(without.charged(moved) if a.name == to else without)
    p.set(accounts=tuple(accounts), restarts=p.status.restarts - (not to))
    failure = failure_of(p, evidence, charge.round)
    last = p.status.last_failure
    if last is not None and last.round == charge.round:
        p.set(last_failure=replace(failure, time=last.time))
    _rewrite_history(p, charge, evidence, rule)
    p.event(
        "ChargeRevised",
        f"{_corrected(account.name, charge, to, evidence.cause)}: {message}",
        cause=evidence.cause,
    )
    return enforce(p, rule, failure, message)


def _corrected(account: str, charge: Charge, to: str, cause: str) -> str:
    """What was corrected: the cause, and the account if it is another."""
    text = f"cause of the end of round {charge.round} corrected"
    if cause != charge.cause:
        text += f" from {charge.cause} to {cause}"
    return text if to == account else f"{text}, charged to {to or 'no account'} instead of {account}"


def _rewrite_history(p: Pass, charge: Charge, evidence: Evidence, rule: Rule | None) -> None:
    """Correct the cause in the history, in the round itself, and of the time that was lost."""
    number, r, history = charge.round or 0, p.round, p.status.round_history
    to, text = failure_rules.account(rule, evidence), evidence.message + failure_rules.describe_effect(rule)
    changes: dict[str, Any] = {"cause": evidence.cause, "account": to, "message": text}
    changes["rule_name"] = rule.name if rule is not None else ""
    over = next((entry for entry in history if entry.number == number), None)
    end = over.end if over is not None else None
    following = next((entry.number for entry in reversed(history) if entry.number > number), 0)
    new = {
        number: replace(over, end=replace(end or RoundEnd(), **changes)) if over is not None else None,
        following: next((replace(h, cause=evidence.cause) for h in history if h.number == following), None),
    }
    p.set(round_history=tuple(new.get(h.number) or h for h in history))
    formed = next((h for h in history if h.number == following), None)
    if formed is not None and p.status.progress is not None:
        p.set(progress=p.status.progress.corrected(following, formed.cause, evidence.cause))
    if following and following == r.number:
        before = end.message if end is not None else charge.message
        rest = r.message[len(before) :] if r.message.startswith(before) else ""
        p.set_round(cause=evidence.cause, account=to, message=text + rest)
    if number == r.number and r.phase == "Broken" and r.next_cause.cause not in NEVER_CHARGED:
        p.set_round(failure_offset_milliseconds=evidence.milliseconds)
        p.set_end(**changes)
