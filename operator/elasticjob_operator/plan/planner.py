"""The planner: from the desired and the observed state to what has to be done. Pure.

One call is one pass. It may run at any time and any number of times: what it decides follows from the status
(the source of truth), from what is observed now, and from when waits began, which may be lost without harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elasticjob.contract.names import JOB_LABEL, STANDBY_LABEL
from elasticjob.contract.round_record import Phase
from elasticjob.rounds.state import MemberState
from elasticjob.rounds.waits import WaitKey, Waits
from elasticjob_operator.plan import conditions, lifecycle
from elasticjob_operator.plan.changes import (
    deleted_pods,
    deletion,
    node_notices,
    scaling,
    suspension,
    unsaved,
)
from elasticjob_operator.plan.charges import backoff, charging, early_ends, revision
from elasticjob_operator.plan.losses import error_text, excluded_nodes, unheard
from elasticjob_operator.plan.pods import ignored_pods, open_files, pods
from elasticjob_operator.plan.rounds import fencing, progress, resumes, rounds, warm_starts
from elasticjob_operator.plan.state import status_size
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Job, Now, Observed, Plan
from elasticjob_operator.plan.state.outlook import Outlook, Waiting
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import JobStatus

MAX_WAITING = 100
"""Pods beyond those wanted that are listed with the participants: users may create any with the label."""

THROTTLE_SECONDS = 1.0
"""Joins and messages reach the status at most once in this many seconds,"""

STARTING_SECONDS = 30.0
"""before the first round, where pods come one by one, once in an interval of the renewals of those who wait
(``wait_renew``: 5 s, and more where many jobs start), and at least so often,"""

_STARTING = ("WaitingForPods", "FormingRound")
"""Reasons of conditions of a job that has had no round."""

PARTICIPANTS_PER_SECOND = 400
"""and in the time that writing the participants takes at this many a second: the status of thousands is a
megabyte, which the API server parses, checks and hands to each watch while all pods join."""


def plan(job: Job, status: JobStatus, observed: Observed, now: Now, timers: Mapping[WaitKey, float]) -> Plan:
    """Decide one pass. Never raises on what comes from pods. ``timers``: when the waits of the pass before
    began."""
    asked = Pass(job, status, observed, now, Waits(timers, now.mono), status)
    kept = unsaved.kept(asked)
    p = asked if kept is job else Pass(kept, status, observed, now, asked.waits, status)
    p.set(
        observed_generation=job.generation,
        selector=f"{JOB_LABEL}={job.name},!{STANDBY_LABEL}",
    )
    outlook = Outlook() if status.finished else _advance(p)
    if kept is not job:
        outlook = replace(outlook, change=unsaved.sentence(job))
    if p.round.phase == "Closed":
        rounds.renumber_closed(p)
    if p.round.phase == "Closed" and p.status.terminal_state:
        pods.clean_up(p)
        lifecycle.expire(p)
    excluded_nodes.clear_dead_nodes(p)
    pods.delete_orphaned_leases(p)
    if not p.before.finished:
        ignored_pods.describe(p)
    conditions.describe(p, outlook)
    p.status = status_size.trim(p.status)
    _throttle(p)
    ignored_pods.report(p)
    open_files.report(p)
    error_text.remember(p)
    return Plan(
        status=p.status,
        record=rounds.projection(p, outlook.waiting.sentence, outlook.replacing),
        members=rounds.member_list(p),
        pod_names=pods.writers(p),
        actions=tuple(p.actions),
        events=tuple(p.events),
        wake_after=p.waits.wake_after,
        waits=p.waits.declared,
        timers=p.waits.began,
        waiting=0 if p.status.finished else p.waiting_participants(),
        judged_silent=tuple(sorted(p.judged_silent)),
        judged_unheard=tuple(sorted(p.judged_unheard)),
        rights_in_doubt=unheard.in_doubt(p),
    )


def plan_without_status_write(
    job: Job, status: JobStatus, observed: Observed, now: Now, decided: Plan
) -> Plan:
    """What may be done while the status can't be written: what follows from the status as it is written.

    Its round is projected, the pods that it has attempts for are made, those that it has as lost are deleted.
    """
    p = Pass(job, status, observed, now, Waits({}, now.mono), status)
    # Nor does a hook end because of a drain that can't be written.
    replacing = decided.record.replacing or decided.record.phase == Phase.DRAINING.value
    # Members that are replaced, and whose workers the round still needs, keep their rights.
    training = decided.pod_names & {member.pod_name for member in status.members()}
    known = status.seen
    return replace(
        decided,
        status=status,
        record=rounds.projection(p, decided.record.waiting_message, replacing),
        members=rounds.member_list(p),
        pod_names=pods.writers(p) | training,
        actions=tuple(action for action in decided.actions if known and pods.is_recorded(p, action)),
        events=(),
        wake_after=None if decided.wake_after is None else max(decided.wake_after, THROTTLE_SECONDS),
    )


def _advance(p: Pass) -> Outlook:
    """One pass of an unfinished job: its rules, in their order."""
    if deletion.wanted(p):
        deletion.end(p)
        return Outlook()
    charging.refresh_accounts(p)
    rounds.renumber_above_leases(p)
    progress.update(p)
    warm_starts.count(p)
    resumes.note(p)
    fencing.note(p)
    awaited, held = deleted_pods.drain_for_deleted_pods(p)
    change = awaited
    p.held = held | node_notices.replace_pods_on_tainted_nodes(p)
    if p.round.phase == "Active":
        rounds.watch_active(p)
    if p.round.phase == "Active":
        change = node_notices.drain_for_tainted_nodes(p) or change
    scaling.update_min_replicas(p)
    over = lifecycle.check_success(p)
    if over:
        return Outlook(over=over)
    draining_first = suspension.wanted(p) and suspension.drains(p)
    if suspension.wanted(p) and not draining_first:
        failed_by_rule = suspension.suspend(p)
        failed_by_rule = revision.revise(p) or failed_by_rule
        over = lifecycle.check_accounts(p, failed_by_rule)
        return Outlook(over=over) if over else Outlook(suspension.hold(p))
    suspension.resume(p)
    if p.round.phase == "Active" and not draining_first:
        change = scaling.rescale(p) or change
    backoff.record_early_pod_ends(p)
    waiting, failed_by_rule = Waiting(), ""
    if p.round.phase == "Broken":
        healthy = backoff.was_healthy(p)
        waiting, failed_by_rule = rounds.form(p)
        if not healthy and backoff.record_lost_members(p):
            waiting = replace(waiting, none_starting=False)
    failed_by_rule = revision.revise(p) or failed_by_rule
    failed_by_rule = early_ends.charge(p) or failed_by_rule
    over = lifecycle.check_failure(p, waiting, failed_by_rule)
    if not over:
        pods.keep_pods(p)
        _list_waiting(p)
    return Outlook(waiting, change, bool(awaited), over)


def _list_waiting(p: Pass) -> None:
    """Participants that have joined and are not members come after the members in ``status.participants``."""
    waiting = tuple(entry for _, entry in p.joined())
    p.set(participants=p.status.members() + waiting[: p.job.spec.pods + MAX_WAITING])
    needed = p.round.phase != "Active" or p.round.members < p.job.spec.pods
    if needed and any(p.silent_announcement(pod) is not None for pod in p.observed.pods):
        p.waits.wake(p.observed.renew_seconds)  # a renewal makes no event


def _throttle(p: Pass) -> None:
    """Keep the status as it was if nothing but joins and sentences changed less than a second ago, or nothing
    but progress less than a minute ago."""
    starting = _starts(p.before) and _starts(p.status)
    if p.status is not p.before and _urgent(p.status, starting) != _urgent(p.before, starting):
        p.waits.restart(JobWait.STATUS_THROTTLE)
        p.waits.restart(JobWait.PROGRESS_THROTTLE)
        # What was decided may begin a wait that no event ends, and our own writes make none.
        p.waits.wake(0)
        return
    reported = p.status.progress is not None and not p.status.finished
    late = reported and p.waits.left(JobWait.PROGRESS_THROTTLE, "", progress.REPORT_SECONDS) == 0
    if late:
        p.waits.restart(JobWait.PROGRESS_THROTTLE)
        p.waits.wake(progress.REPORT_SECONDS)
    elif p.status is p.before or _without_riders(p.status) == _without_riders(p.before):
        p.waits.restart(JobWait.STATUS_THROTTLE)
        p.status = p.before
    elif p.waits.left(JobWait.STATUS_THROTTLE, "", _throttle_seconds(p, starting)) > 0:
        p.status = p.before
    else:
        p.waits.restart(JobWait.STATUS_THROTTLE)


def _without_riders(status: JobStatus) -> JobStatus:
    """The status without what members say along with something else."""
    return warm_starts.without(progress.without(status))


def _throttle_seconds(p: Pass, starting: bool) -> float:
    least = min(STARTING_SECONDS, float(p.wait_renew())) if starting else THROTTLE_SECONDS
    return max(least, len(p.status.participants) / PARTICIPANTS_PER_SECOND)


def _starts(status: JobStatus) -> bool:
    """Whether the job has been seen, and has had neither a round nor a pod that failed."""
    return (
        status.seen
        and status.current_round.number == 0
        and status.last_failure is None
        and not status.finished
    )


def _urgent(status: JobStatus, starting: bool) -> JobStatus:
    """The status without what may wait: joins, leaves, messages about waiting, and ends of pods;
    ``starting``: also how many pods there are, and whether one of them runs."""
    conditions = (replace(c, message="") for c in status.conditions)
    return replace(
        _without_riders(status),
        participants=tuple(
            replace(m, state=MemberState.MEMBER, message="") if m.state == MemberState.LEFT else m
            for m in status.members()
        ),
        conditions=tuple(
            replace(c, reason="") if starting and c.reason in _STARTING else c for c in conditions
        ),
        replicas=0 if status.finished or starting else status.replicas,  # pods come and end one by one
        ignored_pods=(),
        omitted="",
    )
