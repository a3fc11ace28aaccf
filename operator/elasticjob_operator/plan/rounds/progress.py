"""Steps, goodput, hangs, and rounds without progress; from what the leader reports in its Lease, and from
what the other members say as they leave the round.

The time of a job that reports steps is either training (from the first step of a round until its step last
grew) or lost to the cause of the round that came next. Steps that are repeated after a restart count as lost,
too. All times are the operator's own: a report only says how long after the round's barrier something
happened (I9).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime, timedelta

from elasticjob.contract.reports import ProgressReport
from elasticjob.contract.text import counted
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.state.evidence import (
    APPLICATION,
    INFRASTRUCTURE,
    PREEMPTION,
    SCALING,
    Evidence,
)
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import JobStatus, Progress, RoundStatus

REPORT_SECONDS = 60.0
"""How often progress is written when nothing else is."""


def update(p: Pass) -> None:
    """Take in what the leader says of the current round."""
    r = p.round
    report = _report(p)
    if report is None or r.established_time is None or not p.status.round_history:
        _show(p)
        return
    first_step_time = _later(r.established_time, report.first_step_milliseconds, p.now.wall)
    progress = p.status.progress or Progress(counted_time=p.status.start_time)
    if progress.round != r.number:
        progress = _first_step(p, progress, report, first_step_time)
        p.event("FirstStep", f"round {r.number} trains from step {report.first_step}")
    steps = report.step - report.first_step
    progress = replace(
        progress,
        step=report.step,
        milliseconds_per_step=(
            round(report.training_milliseconds / steps) if steps else progress.milliseconds_per_step
        ),
        training_milliseconds=report.training_milliseconds,
        last_report_time=p.now.wall if report.step != progress.step else progress.last_report_time,
    )
    p.set(progress=progress)
    history = p.status.round_history[0]
    waited = history.rendezvous_milliseconds
    first = None if waited is None else waited + report.first_step_milliseconds
    history = replace(
        history, first_step=report.first_step, last_step=report.step, first_step_milliseconds=first
    )
    p.set(round_history=(history, *p.status.round_history[1:]))
    _show(p)


def count_round_time(p: Pass) -> None:
    """The round is over and its successor is published: its time is counted for good."""
    progress, r = p.status.progress, p.round
    if progress is None or not p.status.round_history:
        return
    if progress.round == r.number:
        trained = progress.training_milliseconds
        progress = replace(
            progress,
            trained_milliseconds=progress.trained_milliseconds + trained,
            training_milliseconds=0,
            counted_time=None
            if progress.counted_time is None
            else _later(progress.counted_time, trained, p.now.wall),
        )
    else:
        # It ended before its first step.
        why = r.next_cause
        planned = r.established_time is not None and why.account in (SCALING, PREEMPTION)
        progress = progress.lost(r.number, r.cause, _milliseconds(progress.counted_time, why.time))
        progress = replace(
            progress,
            counted_time=max(filter(None, (progress.counted_time, why.time)), default=None),
            rounds_without_progress=progress.rounds_without_progress + (_failed(r) and not planned),
        )
    p.set(progress=progress)


def hang(p: Pass) -> list[Evidence]:
    """The evidence of a hang, if the leader reports one."""
    leader = next(iter(p.status.members()), None)
    report = p.report_of(leader.pod_uid) if leader is not None else None
    if report is None or not report.hung or not p.job.spec.limits.hang_timeout:
        return []
    text = f"training hung: {report.message or 'no step'}; see the pods' logs for the stacks of all workers"
    return [Evidence(Cause.HANG, text, detect_milliseconds=report.silent_milliseconds)]


def stuck(p: Pass) -> str:
    """Why the job should stop since it gets nowhere, or ""."""
    limit, progress = p.job.spec.max_rounds_without_progress, p.status.progress
    if limit is None or progress is None or progress.rounds_without_progress < limit:
        return ""
    row, step = progress.rounds_without_progress, progress.first_step
    firsts = [h.first_step for h in p.status.round_history]
    same = len(list(itertools.takewhile(lambda first: first == step, firsts)))
    if same > row:
        which = "no checkpoint" if step <= 1 else "no later checkpoint"
        text = (
            f"{counted(row, 'round')} in a row began at the same step as the one before (step {step}): "
            f"{which} is saved or found"
        )
    else:
        text = (
            f"{counted(row, 'round')} in a row began at no later step than the one before (step {step}), or "
            "ended before the first step"
        )
    last = p.status.last_failure
    why = f"; last failure: {last.message}" if last is not None else ""
    return f"{text} (maxRoundsWithoutProgress: {limit}){why}"


def without(status: JobStatus) -> JobStatus:
    """The status without what the progress of a round changes, but for its first step."""
    if status.progress is None:
        return status
    return replace(
        status,
        progress=Progress(round=status.progress.round, lost_by_cause=status.progress.lost_by_cause),
        round_history=tuple(replace(h, last_step=None) for h in status.round_history),
    )


def _report(p: Pass) -> ProgressReport | None:
    """What the leader says; of a round that has ended, the most that any member says."""
    members = p.status.members()
    if p.round.phase == "Active":
        members = members[:1]
    reports = [report for member in members if (report := _report_of(p, member.pod_uid)) is not None]
    if not reports:
        return None
    first, furthest = reports[0], max(reports, key=lambda report: report.step)
    return replace(
        furthest, first_step=first.first_step, first_step_milliseconds=first.first_step_milliseconds
    )


def _report_of(p: Pass, pod_uid: str) -> ProgressReport | None:
    lease = p.lease_of(pod_uid)
    if lease is None or lease.progress is None or lease.progress.nonce != p.round.nonce:
        return None
    return lease.progress


def _first_step(p: Pass, before: Progress, report: ProgressReport, time: datetime) -> Progress:
    """The first report of this round: what was lost until here, and what is done again."""
    again = max(0, before.step - report.first_step + 1) if before.round else 0
    redone = min(before.trained_milliseconds, again * (before.milliseconds_per_step or 0))
    # Time in which the job was suspended is neither training nor lost.
    since = max(filter(None, (before.counted_time, p.status.start_time)), default=None)
    progress = before.lost(p.round.number, p.round.cause, _milliseconds(since, time) + redone)
    no_later = before.round > 0 and report.first_step <= before.first_step
    row = before.rounds_without_progress
    return replace(
        progress,
        round=p.round.number,
        first_step=report.first_step,
        step=report.first_step,
        trained_milliseconds=before.trained_milliseconds - redone,
        counted_time=max(time, since) if since is not None else time,
        rounds_without_progress=(row + _failed(p.round)) if no_later else 0,
    )


def _failed(formed: RoundStatus) -> int:
    """1 if a failure made this round necessary: planned changes say nothing about progress."""
    return int(formed.account in (APPLICATION, INFRASTRUCTURE))


def _show(p: Pass) -> None:
    """What people read, up to now."""
    progress = p.status.progress
    if progress is None:
        return
    trained = progress.trained_milliseconds + progress.training_milliseconds
    lost = sum(entry.milliseconds for entry in progress.lost_by_cause)
    if progress.round != p.round.number or p.round.phase != "Active":
        counted = progress.counted_time
        since = None if counted is None else _later(counted, progress.training_milliseconds, p.now.wall)
        end = None if p.job.spec.suspend else p.now.wall
        lost += _milliseconds(since, end)
    whole = trained + lost
    p.set(
        progress=replace(
            progress,
            goodput_percent=round(100 * trained / whole) if whole else None,
            lost_seconds=round(lost / 1000),
        )
    )


def _later(time: datetime, milliseconds: int, now: datetime) -> datetime:
    """The moment so long after that time, but not in the future."""
    return max(time, min(time + timedelta(milliseconds=milliseconds), now))


def _milliseconds(since: datetime | None, until: datetime | None) -> int:
    if since is None or until is None:
        return 0
    return max(0, round((until - since).total_seconds() * 1000))
