"""Draining: before a planned change ends a running round, its workers stop at a common step.

The change is decided first. If all workers of the round have called ``should_stop``, which its leader says
in its Lease, the round is published as Draining with the change as cause. Its members agree on a step, save
a checkpoint and wait. The round ends for the change when the leader says that all have stopped, or at the
deadline (``spec.drainSeconds``). A loss or a failure meanwhile ends it like any running round, for its own
cause. A drain is never taken back: the workers may have agreed on their step already.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from elasticjob.contract.reports import DrainReport
from elasticjob.contract.round_record import Phase
from elasticjob.contract.str_enum import StrEnum
from elasticjob.contract.text import listed
from elasticjob_operator.plan.rounds.rounds import end_round
from elasticjob_operator.plan.state.evidence import CAUSES, Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import RoundDrain


class HowStopped(StrEnum):
    """How the workers of a round were stopped that ended for a planned change.

    * Stopped: at a common step, by themselves.
    * DeadlineExceeded: they had not stopped within ``spec.drainSeconds``.
    * NotSupported: at once; not all of them had called ``should_stop``.
    * Off: at once; ``spec.drainSeconds`` is 0.
    """

    STOPPED = "Stopped"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NOT_SUPPORTED = "NotSupported"
    OFF = "Off"


def holds(p: Pass, change: Evidence, limit: int | None = None) -> bool:
    """Whether the running round goes on for now, because it drains before this change ends it.

    Begins the drain if it has not begun, for ``spec.drainSeconds`` or the ``limit`` if that is shorter.
    """
    r, seconds = p.round, p.job.spec.drain_seconds
    if limit is not None:
        seconds = min(seconds, limit)
    if r.phase != Phase.ACTIVE.value:
        return False
    if r.drain is None:
        if not seconds or r.established_time is None or _report(p) is None:
            return False
        wall = p.now.wall
        deadline = wall + timedelta(seconds=seconds)
        p.set_round(drain=RoundDrain(wall, deadline, str(change.cause), change.message))
        p.event(
            "RoundDraining",
            f"round {r.number} drains for up to {seconds} s before it ends: {change.message}",
            cause=change.cause,
        )
    return _left(p) > 0 and not has_stopped(p)


def end(p: Pass, change: Evidence) -> None:
    """End the round for a planned change, and say how its workers were stopped."""
    how, change = how_stopped(p, change)
    end_round(p, [change])
    p.set_end(drain=how.value)


def how_stopped(p: Pass, change: Evidence) -> tuple[HowStopped, Evidence]:
    """How the workers of the running round stop, and the change with a sentence on that."""
    r, report = p.round, _report(p)
    if r.drain is None:
        how = HowStopped.NOT_SUPPORTED if p.job.spec.drain_seconds else HowStopped.OFF
    elif report is not None and report.stopped:
        how = HowStopped.STOPPED
        change = replace(change, message=f"{change.message}; all workers stopped at step {report.step}")
    else:
        how = HowStopped.DEADLINE_EXCEEDED
        limit = (r.drain.deadline_time - r.drain.start_time).total_seconds()
        whole = limit >= p.job.spec.drain_seconds
        which = "drainSeconds" if whole else "the grace period of its pod allows no more"
        change = replace(
            change,
            message=f"{change.message}; the workers had not stopped after {limit:.0f} s ({which})"
            + _waiting(p),
        )
    return how, change


def change_or_drain(p: Pass, change: Evidence) -> None:
    """End the running round for this change, now or when it has drained."""
    if not holds(p, change):
        end(p, change)


def follow(p: Pass) -> None:
    """A round that drains: end it when its workers have stopped, or time is up. Where the job ends with it
    (``lifecycle``), that comes later in the pass."""
    drain = p.round.drain
    if not all_have_succeeded(p) and drain is not None and drain.cause in CAUSES:
        change_or_drain(p, Evidence(drain.cause, drain.message))


def all_have_succeeded(p: Pass) -> bool:
    """Whether no member is left that could stop, or that the change would move: what their commands still do
    after training is theirs."""
    members = p.status.members()
    return bool(members) and all(map(p.has_ended_well, members))


def has_stopped(p: Pass) -> bool:
    """Whether all workers of the round have stopped."""
    report = _report(p)
    return report is not None and report.stopped


def describe(p: Pass) -> str:
    """What the drain is for and how long it may take, as a sentence; "" without one."""
    drain = p.round.drain
    if drain is None:
        return ""
    limit = (drain.deadline_time - drain.start_time).total_seconds()
    text = f"{drain.message}; waiting up to {limit:.0f} s for all workers to stop at a common step"
    return text + _waiting(p)


def takes_part(p: Pass) -> bool:
    """Whether a planned change would let the running round drain: all of its workers call ``should_stop``."""
    return bool(p.job.spec.drain_seconds) and _report(p) is not None


def _waiting(p: Pass) -> str:
    """A clause on the pods that the drain waits for, as the leader says; "" if it says nothing. It does not
    name the step: where training ends before it, no worker comes to it."""
    report = _report(p)
    if report is None or not report.waiting_ranks:
        return ""
    ranks = frozenset(report.waiting_ranks)
    pods = listed([m.pod_name for m in p.status.members() if m.group_rank in ranks])
    if not report.step:
        return f"; no answer from torchrun in {pods}"
    return f"; neither stopped nor ended: {pods}"


def _left(p: Pass) -> float:
    drain = p.round.drain
    assert drain is not None
    limit = (drain.deadline_time - drain.start_time).total_seconds()
    return p.left_since(drain.start_time, limit, JobWait.DRAIN, p.round.number)


def _report(p: Pass) -> DrainReport | None:
    """What the leader says of this round's workers: they take part in drains."""
    leader = next(iter(p.status.members()), None)
    lease = p.lease_of(leader.pod_uid) if leader is not None else None
    report = lease.drain if lease is not None else None
    return report if report is not None and report.nonce == p.round.nonce else None
