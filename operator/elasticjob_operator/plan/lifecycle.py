"""The end of a job: Complete when all members of one round have succeeded, or Failed with a reason.

Where the operator creates the pods, the training containers must also have ended with exit code 0.

Each check returns the reason of the terminal condition, "" while the job goes on. That condition is written
first, then the record (Closed), then pods are cleaned up (I8).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.round_record import Outcome, Phase
from elasticjob.contract.text import counted, listed
from elasticjob.rounds.causes import PLANNED
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.changes import draining
from elasticjob_operator.plan.charges.charging import exhausted, slot_attempt
from elasticjob_operator.plan.losses import pod_ends
from elasticjob_operator.plan.losses.members import started_again
from elasticjob_operator.plan.pods.pods import LINGER_SECONDS
from elasticjob_operator.plan.rounds import progress
from elasticjob_operator.plan.rounds.rounds import others_may_go_on, projection
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import DeleteJob
from elasticjob_operator.plan.state.outlook import Waiting
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus
from elasticjob_operator.plan.template import torchrun_flags

LONGEST_PIECE_SECONDS = 60.0
"""The time that counts for ``idleDeadlineSeconds`` is written down at least this often."""

CLOSING_SECONDS = 1.0
"""How soon it is looked again whether the round Lease says that the job is over."""


def check_success(p: Pass) -> str:
    """Complete the job if every member of the running round has succeeded. Where the operator makes the pods,
    their commands may go on after torchrun: there the training containers must have ended with 0. A planned
    change that ends a round while its members finish makes no difference, if all have."""
    members = p.status.members()
    if not members or not all(_is_done(p, m) for m in members):
        return ""
    who = f"all {len(members)} members" if len(members) > 1 else "the only member"
    text = f"{who} of round {p.round.number} succeeded"
    return _close(p, Outcome.COMPLETE, "Succeeded", text)


def _is_done(p: Pass, member: ParticipantStatus) -> bool:
    own = p.job.spec.template is not None
    if p.round.phase == Phase.ACTIVE:
        return member.completed if own else member.succeeded
    if p.round.phase != Phase.BROKEN or p.round.next_cause.cause not in PLANNED:
        return False
    return _ended_well(p, member) if own else member.succeeded


def check_accounts(p: Pass, failed_by_rule: str) -> str:
    """Fail the job if a failure rule ends it, with this message, or an account is used up."""
    if failed_by_rule:
        return _close(p, Outcome.FAILED, "FailureRule", failed_by_rule)
    account = exhausted(p)
    if account is None:
        return ""
    window = f" within {account.window_seconds} s" if account.window_seconds else ""
    last = f"; last failure: {p.status.last_failure.message}" if p.status.last_failure else ""
    return _close(
        p,
        Outcome.FAILED,
        f"{account.name.capitalize()}RestartsExhausted",
        f"failurePolicy.{account.name} allows {counted(account.max_restarts or 0, 'restart')}{window}, "
        f"but {account.used} {'was' if account.used == 1 else 'were'} needed{last}",
    )


def check_failure(p: Pass, waiting: Waiting, failed_by_rule: str) -> str:
    """Fail the job if it can't or must not go on. ``waiting``: what the next round waits for."""
    return (
        check_accounts(p, failed_by_rule)
        or _check_deadline(p)
        or _check_progress(p)
        or _check_agreement(p)
        or _check_joined(p)
        or _check_lost_after_success(p)
        or _check_idle_deadline(p, waiting)
    )


def expire(p: Pass) -> None:
    """Delete a finished job whose time to live is over, and with it all that it owns.

    Not before its participants can read that it is Closed, and have had their time to end by themselves; a
    pod that has not by then is stopped like any pod that is deleted.
    """
    seconds, end, record = p.job.spec.ttl_after_finished, p.status.end_time, p.observed.record
    if seconds is None or end is None:
        return
    own = p.job.spec.template is not None
    ending = own and any(pod.of_this_job and not pod.ended for pod in p.observed.pods)
    limit = max(seconds, LINGER_SECONDS) if ending else seconds
    left = max(0.0, _left(p, end, limit))
    p.waits.declare(JobWait.TIME_TO_LIVE, "", limit, left)
    if left > 0 or not p.before.finished:
        p.waits.wake(left)
        return
    if record is None or projection(p).ahead_of(record):
        p.waits.wake(CLOSING_SECONDS)  # our own write of the Lease makes no event
        return
    p.actions.append(DeleteJob(f"ttlSecondsAfterFinished ({seconds} s) expired"))


def _check_progress(p: Pass) -> str:
    """Fail a job of which round after round gets nowhere."""
    stuck = progress.stuck(p)
    return _close(p, Outcome.FAILED, "NoProgress", stuck) if stuck else ""


def _check_joined(p: Pass) -> str:
    """Fail a job whose command does not take part in rounds."""
    never = _never_joined(p)
    if not never:
        return ""
    why = torchrun_flags.why_apart(p.job) or torchrun_flags.MUST
    text = f"{never} ended with exit code 0 and never joined a round: {why}"
    return _close(p, Outcome.FAILED, "NeverJoined", text)


def _check_lost_after_success(p: Pass) -> str:
    """Fail a job that lacks a member, and whose pods the operator cannot replace."""
    over = p.job.spec.template is None and p.round.phase == Phase.BROKEN
    if not over or not _some_had_succeeded(p) or _may_all_succeed(p) or others_may_go_on(p):
        return ""
    return _close(
        p,
        Outcome.FAILED,
        "MemberLostAfterSuccess",
        f"{p.round.next_cause.message}; other members had already succeeded, and a job without template "
        "cannot replace pods: delete the ElasticJob and the object that creates its pods, then apply "
        "both again",
    )


def _check_agreement(p: Pass) -> str:
    """Fail a job if some members' commands have ended, and all others' have started torchrun again: they
    would wait without end."""
    again, done, pending = _after_success(p)
    if not again or not done or pending:
        return ""
    return _close(
        p,
        Outcome.FAILED,
        "MembersDisagree",
        f"after round {p.round.number} succeeded, {listed(again)} started torchrun again, but {listed(done)} "
        "ended with exit code 0: run the same torchruns in all pods, or give --standalone to one that only "
        "some pods run",
    )


def after_success(p: Pass) -> str:
    """What a round waits for whose members have all succeeded, as a sentence; "" for any other."""
    again, _, pending = _after_success(p)
    if not again and not pending:
        return ""
    text = "all members succeeded"
    if again:
        text += f"; {listed(again)} started torchrun again"
    if not pending:
        return text
    containers = "the container" if len(pending) == 1 else "the containers"
    follow = " or to start torchrun again" if again else ""
    return f"{text}; waiting for {containers} of {listed(pending)} to end{follow}"


def _after_success(p: Pass) -> tuple[list[str], list[str], list[str]]:
    """The pods of a round that has succeeded: those whose command has started torchrun again, those whose
    container has ended with 0, and those of which neither is known yet."""
    members = p.status.members()
    own = p.job.spec.template is not None
    if not own or p.round.phase != "Active" or not all(m.succeeded for m in members):
        return [], [], []
    again = [m.pod_name for m in members if started_again(p, m)]
    done = [m.pod_name for m in members if m.completed]
    return again, done, [m.pod_name for m in members if m.pod_name not in again and not m.completed]


def _check_deadline(p: Pass) -> str:
    """Fail a job that has been active for too long; its running round drains before."""
    seconds, since = p.job.spec.active_deadline, p.status.start_time
    if seconds is None or since is None:
        return ""
    left = _left(p, since, seconds)
    if left > 0:
        p.waits.declare(JobWait.ACTIVE_DEADLINE, "", seconds, left)
        p.waits.wake(left)
        return ""
    text = f"the job was active for longer than activeDeadlineSeconds ({seconds} s)"
    change = Evidence("DeadlineExceeded", text)
    if draining.holds(p, change):
        return ""
    if p.round.phase == Phase.ACTIVE.value:
        how, change = draining.how_stopped(p, change)
        p.set_end(drain=how.value)
    return _close(p, Outcome.FAILED, "DeadlineExceeded", change.message)


def _check_idle_deadline(p: Pass, waiting: Waiting) -> str:
    """Fail a job whose pods have held nodes for too long without a round.

    Time in which none had a node does not count: a job may wait in a queue for longer. What counts is in
    the status, so that neither restarts nor gaps in a watch start it again. It is written down ten times in
    the limit, and no piece counts for more than twice its length: a wall clock that is set forward, or that
    of another operator, ends no job.
    """
    limit, r = p.job.spec.idle_deadline, p.round
    holds = r.phase == "Broken" and any(pod.node for pod in p.observed.pods if p.alive(pod))
    if limit is None:
        return ""
    piece = max(1.0, min(LONGEST_PIECE_SECONDS, limit / 10))
    passed, latest = float(r.idle_seconds), 0.0
    if r.idle_since_time is not None:
        by_wall = (p.now.wall - r.idle_since_time).total_seconds()
        own = p.waits.elapsed(JobWait.IDLE, f"{r.idle_since_time:%Y%m%d%H%M%S}")
        latest = min(max(by_wall, own, 0.0), 2 * piece)
        passed += latest
    if holds and passed >= limit:
        p.judged_unheard.update(pod.name for pod in p.observed.pods if p.alive(pod))
        text = f"pods held nodes for {limit} s (idleDeadlineSeconds) without a round: {waiting.sentence}"
        return _close(p, Outcome.FAILED, "IdleDeadlineExceeded", text)
    if holds != (r.idle_since_time is not None) or latest >= piece:
        whole = int(passed)
        p.set_round(
            idle_since_time=p.now.wall - timedelta(seconds=passed - whole) if holds else None,
            idle_seconds=whole,
        )
        latest = passed - whole
    if holds:
        p.waits.declare(JobWait.IDLE, "", limit, limit - passed)
        p.waits.wake(max(0.1, min(limit - passed, piece - latest)))
    return ""


def _left(p: Pass, since: datetime, seconds: float) -> float:
    """Seconds until this many have passed since then, by wall time: the wait's start is in the status."""
    return seconds - (p.now.wall - since).total_seconds()


def _never_joined(p: Pass) -> str:
    """A pod of ours that ended well by itself and never joined, while no live pod of the job has joined, nor
    any had before: their command is the same. Pods of others may be older than this job."""
    if p.job.spec.template is None or p.round.number > 0:
        return ""
    if any(p.alive(pod) and p.participant(pod) is not None for pod in p.observed.pods):
        return ""
    members = p.status.member_uids
    for pod in p.observed.pods:
        if not pod.of_this_job or not pod.exited_well or p.is_replaced(pod):
            continue
        if pod.uid in members or p.participant(pod) is not None or slot_attempt(pod) in p.before.charged_pods:
            continue
        if pod_ends.disruption_of(p, pod, pod.name) is not None or pod_ends.node_problem(p, pod):
            continue
        if pod_ends.explanation_left(p, pod) == 0:
            p.judged_unheard.add(pod.name)
            return pod.name
    return ""


def _may_all_succeed(p: Pass) -> bool:
    """Whether a planned change ended the round just as its members finished, as far as is known by now."""
    return p.round.next_cause.cause in PLANNED and all(
        m.succeeded or m.state == MemberState.MEMBER for m in p.status.members()
    )


def _some_had_succeeded(p: Pass) -> bool:
    """Whether a member of the last round has ended well: its controller makes it no more."""
    if any(_ended_well(p, member) for member in p.status.members()):
        return True
    before = p.before.members()
    return p.before.current_round.number == p.round.number and any(m.succeeded for m in before)


def _ended_well(p: Pass, member: ParticipantStatus) -> bool:
    pod = p.pods_by_uid.get(member.pod_uid)
    if pod is None or not pod.exited_well:
        return False
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    return record is None or (record.id == member.id and record.state != AnnouncedState.LEAVING.value)


def _close(p: Pass, outcome: Outcome, reason: str, message: str) -> str:
    """The job is over: the round is Closed for good. Returns the reason."""
    wall, end = p.now.wall, p.round.end
    p.set_round(phase=Phase.CLOSED.value, drain=None, resumed=False)  # no other follows
    p.set_end(time=end.time if end is not None else wall, message=message)
    p.status = p.status.stopped(wall)
    p.set(completion_time=wall if outcome is Outcome.COMPLETE else None, terminal_state=outcome.value)
    p.event(f"Job{outcome.value}", message, warning=outcome is Outcome.FAILED)
    return reason
