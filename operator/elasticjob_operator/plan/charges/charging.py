"""Accounts: each root failure is charged once. The status has it, with its time, before anything follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from elasticjob.contract.names import JOB_LABEL
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.charges import backoff, failure_rules
from elasticjob_operator.plan.losses import error_text, excluded_nodes
from elasticjob_operator.plan.state.evidence import (
    ACCOUNTS,
    APPLICATION,
    INFRASTRUCTURE,
    PREEMPTION,
    SCALING,
    Evidence,
    explains_more,
)
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Limit, Pod, Rule, RuleAction
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.restart_accounts import Account, Charge
from elasticjob_operator.plan.state.status import EarlyFailures, Failure
from elasticjob_operator.plan.template.containers import training_container

MAX_MESSAGE = 320
"""Characters of the sentence that stands with a charge."""


def refresh_accounts(p: Pass) -> None:
    """Put the limits in force into the status and drop the charges that are older than their window."""
    old = {a.name: a for a in p.status.accounts}
    spec = p.job.spec
    limits = {
        APPLICATION: spec.application,
        INFRASTRUCTURE: spec.infrastructure,
        PREEMPTION: spec.preemption,
    }
    accounts = []
    for name in ACCOUNTS:
        limit = limits.get(name, Limit())
        account = replace(
            old.get(name, Account(name)), max_restarts=limit.max_restarts, window_seconds=limit.window_seconds
        )
        if limit.window_seconds is not None:
            account = account.since(p.now.wall - timedelta(seconds=limit.window_seconds))
        accounts.append(account.counted())
    p.set(accounts=tuple(accounts))
    if p.status.charged_pods:
        there = {slot_attempt(pod) for pod in p.pods_by_uid.values() if not p.is_replaced(pod)}
        p.set(charged_pods=tuple(pod for pod in p.status.charged_pods if pod in there))


def record_evidence(p: Pass, evidence: list[Evidence]) -> None:
    """Keep the best evidence as the cause of the broken round, and the root failure for people.

    ``status.currentRound.end`` is the cause so far, with what the first rule that matches
    it makes of it. Nothing is charged yet: that is done when the next round is published, or when every
    member is accounted for. From then on ``revision`` judges what comes.
    """
    if p.round.charged_time is not None:
        return
    for found in evidence:
        if not _explains_more(p, found, True):
            continue  # no rule can change that: of a thousand reports nearly all are echoes
        rule = failure_rules.first_matching_rule(p.job.spec.rules, found)
        if not _explains_more(p, found, rule is not None):
            continue
        p.set_round(failure_offset_milliseconds=found.milliseconds, resumed=False)
        p.set_end(
            cause=found.cause,
            account=failure_rules.account(rule, found),
            message=found.message + failure_rules.describe_effect(rule),
            rule_name=rule.name if rule is not None else "",
            detect_milliseconds=found.detect_milliseconds,
        )
        if found.account != SCALING:
            p.set(last_failure=failure_of(p, found, p.round.number))


def root(p: Pass) -> Failure | None:
    """The root failure of the round that has ended, if it was a failure."""
    last = p.status.last_failure
    return last if last is not None and last.round == p.round.number else None


def charge_round(p: Pass) -> str:
    """Charge the end of the round to its account, once: the round's number is the key (I7). Returns why a
    failure rule ends the job, "" if none does."""
    if _charged(p, round_number=p.round.number):
        return ""
    failure, why = root(p), p.round.next_cause
    node = (
        excluded_nodes.suspected(why.cause, failure.exit_code, failure.node_name)
        if failure is not None
        else ""
    )
    charge = Charge(p.now.wall, p.round.number, cause=why.cause, node_name=node, message=cut(why.message))
    _charge(p, why.account, charge)
    p.set_round(charged_time=p.now.wall)
    if failure is None:
        return ""
    rule = failure_rules.by_name(p.job.spec.rules, why.rule_name)
    if rule is None:
        error_text.report(p, failure)
    return enforce(p, rule, failure, why.message)


def charge_pod(p: Pass, evidence: Evidence) -> tuple[str, str]:
    """Charge a pod that ended before it was ever a member. The status knows it for as long as it is there
    (``mark_charged``): its charge may leave the window, or the list. Beside a running round the charge is for
    people and for nodes to avoid: no limit may end training that such a pod has not touched. Between rounds
    an account is charged once for an attempt, however many slots it fails in: a limit says how often it is
    tried again. Returns the sentence on it, "" if it was sent before; and why a failure rule ends the job, ""
    if none does."""
    rule = failure_rules.first_matching_rule(p.job.spec.rules, evidence)
    account, message = (
        failure_rules.account(rule, evidence),
        evidence.message + failure_rules.describe_effect(rule),
    )
    failure = failure_of(p, evidence, None)
    if not account:
        return message if p.waits.begins(JobWait.EARLY_END_TOLD, evidence.pod_uid) else "", ""
    known = _charged(p, pod=evidence.pod_name)
    mark_charged(p, evidence.pod_uid)
    if known:
        return "", ""
    beside = p.round.number if p.round.phase == "Active" else None
    _charge(
        p,
        account,
        Charge(
            p.now.wall,
            pod_name=evidence.pod_name,
            cause=evidence.cause,
            node_name=excluded_nodes.suspected(evidence.cause, evidence.exit_code, evidence.node_name),
            message=cut(message),
            during_round=beside,
            counted_with=_counted_with(p, account, evidence) if beside is None else "",
        ),
    )
    if root(p) is None or p.round.phase == "Active" or p.round.charged_time is not None:
        p.set(last_failure=failure)  # else that of the round is still to be charged
    return message, enforce(p, rule, failure, message)


def _counted_with(p: Pass, account: str, evidence: Evidence) -> str:
    """The pod with which this one, which ended before it joined, is counted, as the account was charged for
    as many attempts as its slot has had. "" if it is the first of its attempt, which is recorded."""
    pod = p.pods_by_uid.get(evidence.pod_uid)
    attempt = backoff.attempts_ended_early(p, pod.slot if pod is not None else None)
    most = max(attempt, backoff.most_attempts_ended_early(p))
    before = next((f for f in p.round.early_failures if f.account == account), None)
    charged = min(before.attempts, most) if before is not None else 0  # slots may have been forgotten
    if before is not None and attempt <= charged:
        return before.pod_name
    others = tuple(f for f in p.round.early_failures if f.account != account)
    p.set_round(early_failures=(*others, EarlyFailures(account, charged + 1, evidence.pod_name)))
    return ""


def mark_charged(p: Pass, uid: str) -> None:
    """The end of this pod is charged for, or has no charge of its own."""
    pod = p.pods_by_uid.get(uid) if p.job.spec.template is not None else None
    if pod is not None and not p.is_replaced(pod) and slot_attempt(pod) not in p.status.charged_pods:
        # The ends of pods that were replaced are not looked at.
        p.set(charged_pods=(*p.status.charged_pods, slot_attempt(pod)))


def slot_attempt(pod: Pod) -> str:
    """The name of a pod of this job without the job's: there may be thousands in the status."""
    return f"{pod.slot}-{pod.attempt}"


def enforce(p: Pass, rule: Rule | None, failure: Failure, message: str) -> str:
    """Do what the rule asks for beside charging: keep off the node and leave it. Returns why it ends the job,
    "" if it does not."""
    if rule is None:
        return ""
    if rule.action == RuleAction.EXCLUDE_NODE:
        excluded_nodes.exclude(p, failure.node_name, message)
        if failure.node_name in excluded_nodes.excluded(p) and p.round.phase != "Active":
            _mark_lost(p, failure.pod_uid, message)
    return message if rule.action == RuleAction.FAIL_JOB else ""


def exhausted(p: Pass) -> Account | None:
    """The account whose limit is passed, if any."""
    return next(
        (a for a in p.status.accounts if a.max_restarts is not None and a.used > a.max_restarts), None
    )


def failure_of(p: Pass, evidence: Evidence, number: int | None) -> Failure:
    """The failure as people read it."""
    return Failure(
        evidence.pod_name,
        p.now.wall,
        evidence.message,
        evidence.group_rank,
        evidence.exit_code,
        number,
        evidence.pod_uid,
        evidence.node_name,
        _logs(p, evidence),
        next((m.container_restarts for m in p.status.members() if m.pod_uid == evidence.pod_uid), 0),
    )


def cut(message: str) -> str:
    """As much of a sentence as stands with a charge."""
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."


def renumber(p: Pass, number: int) -> None:
    """The round that has ended gets another number, and its charge and root failure with it."""
    old = p.round.number
    p.set(
        accounts=tuple(
            replace(a, charges=tuple(replace(c, round=number) if c.round == old else c for c in a.charges))
            for a in p.status.accounts
        )
    )
    failure = root(p)
    if failure is not None:
        p.set(last_failure=replace(failure, round=number))
    p.set_round(number=number)


def detection(p: Pass) -> int | None:
    """Milliseconds from the root failure until the round was broken.

    The failure is dated by the first worker that ended, even if that is an echo: an offset from the round's
    barrier, when the round was established. Without such a report, the witness of the end says it.
    """
    r = p.round
    why = r.next_cause
    if why.account == SCALING or not r.number:
        return None
    first = None if r.established_time is None or why.time is None else _first_end(p)
    if first is None or r.established_time is None or why.time is None:
        return why.detect_milliseconds
    return max(0, round((why.time - r.established_time).total_seconds() * 1000) - first)


def _first_end(p: Pass) -> int | None:
    """How long after the barrier the first worker of this round failed, of those that say so."""
    found = []
    for member in p.status.members():
        lease = p.observed.leases.get(member.pod_name)
        failure = lease.failure if lease is not None and lease.holder == member.pod_uid else None
        if failure is None or not failure.of(p.job.uid, p.round.number) or failure.after_round_end:
            continue
        if failure.offset_milliseconds is not None:
            found.append(failure.offset_milliseconds)
    return min(found, default=None)


def _mark_lost(p: Pass, uid: str, message: str) -> None:
    """The member in this pod is replaced."""
    if uid not in p.status.lost_pod_uids:
        p.mark_lost({uid: message})


def _explains_more(p: Pass, evidence: Evidence, matched: bool) -> bool:
    r, why = p.round, p.round.next_cause
    return explains_more(
        evidence.cause,
        matched,
        evidence.milliseconds,
        why.cause,
        bool(why.rule_name),
        r.failure_offset_milliseconds,
    )


def _logs(p: Pass, evidence: Evidence) -> str:
    """The command that shows the log to read on."""
    where = f"kubectl -n {p.job.namespace} logs"
    template = p.job.spec.template or {}
    container = training_container(template.get("metadata") or {}, template.get("spec") or {})
    container = f" -c {container}" if container else ""
    if not evidence.pod_name:
        return f"{where} -l {JOB_LABEL}={p.job.name}{container} --prefix --tail=200"
    pod = p.pods_by_uid.get(evidence.pod_uid)
    if pod is not None and pod.failed_init:
        container = f" -c {pod.failed_init}"
    restarted = pod is not None and pod.running and pod.last_exit is not None
    again = (
        " --previous" if restarted and evidence.cause in (Cause.POD_RESTARTED, Cause.OUT_OF_MEMORY) else ""
    )
    return f"{where} {evidence.pod_name}{container}{again}"


def _charged(p: Pass, round_number: int | None = None, pod: str = "") -> bool:
    if round_number is not None and p.round.charged_time is not None:
        return True  # the charge itself may have left its window
    return any(
        (pod and c.pod_name == pod) or (round_number is not None and c.round == round_number)
        for a in p.status.accounts
        for c in a.charges
    )


def _charge(p: Pass, account: str, charge: Charge) -> None:
    accounts = tuple(a.charged(charge) if a.name == account else a for a in p.status.accounts)
    p.set(accounts=accounts, restarts=p.status.restarts + charge.counts)
