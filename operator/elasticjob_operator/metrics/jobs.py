"""What is shown of the jobs: from what the operator knows of them to samples. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice

from elasticjob_operator.metrics import families as f
from elasticjob_operator.metrics.families import Sample
from elasticjob_operator.observe.spec import JobView

STATES = (
    *("New", "WaitingForPods", "FormingRound", "WaitingForFencing", "Establishing", "Training", "Draining"),
    *("Suspended", "Queued", "Complete", "Failed"),
)
"""The reasons of the condition Training; New before the first status."""
OTHER = "Other"
MAX_NODES = 20
FAILED_SECONDS = 600.0

_RUNNING = frozenset({"Establishing", "Training", "Draining"})


def state_of(view: JobView) -> str:
    """The job's state; Other for a word that this operator does not know."""
    training = view.status.condition("Training")
    if training is None:
        return "New"
    return training.reason if training.reason in STATES else OTHER


def samples(
    views: Sequence[JobView],
    unreadable: int,
    wall: datetime,
    per_job: bool,
    max_jobs: int,
    zones: Mapping[str, str],
) -> Iterator[Sample]:
    """All jobs together and, with ``per_job``, up to ``max_jobs`` of them one by one: those that have not
    ended first, then by name, so that a job keeps its series. ``zones`` are those
    of nodes by name."""
    yield from _together(views, unreadable)
    yield from _nodes(views, wall, zones)
    shown = 0
    if per_job:
        ordered = sorted(views, key=lambda v: (v.status.finished, v.job.namespace, v.job.name))
        shown = min(len(ordered), max_jobs)
        for view in islice(ordered, shown):
            yield from _alone(view)
    yield Sample(f.WITHOUT_SERIES, (), len(views) - shown if per_job else 0)


def _together(views: Iterable[JobView], unreadable: int) -> Iterator[Sample]:
    states: Counter[str] = Counter()
    members = standbys = wanted = 0
    for view in views:
        states[state_of(view)] += 1
        members += _members(view)
        standbys += _standbys(view)
        wanted += _wanted(view)
    for state in (*STATES, OTHER):
        yield Sample(f.JOBS, (state,), states[state])
    yield Sample(f.UNREADABLE, (), unreadable)
    yield Sample(f.MEMBERS, (), members)
    yield Sample(f.STANDBYS, (), standbys)
    yield Sample(f.WANTED_PODS, (), wanted)


def _nodes(views: Iterable[JobView], wall: datetime, zones: Mapping[str, str]) -> Iterator[Sample]:
    """Nodes that many jobs have just failed on come first."""
    since = wall - timedelta(seconds=FAILED_SECONDS)
    failures = (view.status.last_failure for view in views)
    jobs = Counter(fail.node_name for fail in failures if fail is not None and fail.time > since)
    del jobs[""]
    for node, count in sorted(jobs.items(), key=lambda item: (-item[1], item[0]))[:MAX_NODES]:
        yield Sample(f.NODE_FAILED_JOBS, (node, zones.get(node, "")), count)


def _alone(view: JobView) -> Iterator[Sample]:
    """The series of one job; few, if it has ended."""
    job, status = view.job, view.status
    who = (job.namespace, job.name)
    yield Sample(f.JOB_STATE, (*who, state_of(view)), 1)
    yield Sample(f.JOB_RESTARTS, who, status.restarts)
    progress = status.progress
    if progress is not None:
        yield Sample(f.JOB_STEP, who, progress.step)
        if progress.goodput_percent is not None:
            yield Sample(f.JOB_GOODPUT, who, progress.goodput_percent / 100)
        if progress.lost_seconds is not None:
            yield Sample(f.JOB_LOST, who, progress.lost_seconds)
    if status.finished:
        return
    yield Sample(f.JOB_WANTED, who, _wanted(view))
    yield Sample(f.JOB_LEAST, who, status.min_replicas)
    yield Sample(f.JOB_MEMBERS, who, _members(view))
    yield Sample(f.JOB_STANDBYS, who, _standbys(view))
    yield Sample(f.JOB_ROUND, who, status.current_round.number)
    for account in status.accounts:
        if account.max_restarts is not None:
            yield Sample(f.JOB_CHARGES_LEFT, (*who, account.name), account.max_restarts - account.used)
    if progress is not None and progress.last_report_time is not None:
        yield Sample(f.JOB_STEP_TIME, who, progress.last_report_time.timestamp())


def _wanted(view: JobView) -> int:
    return 0 if view.status.finished or view.job.spec.suspend else view.job.spec.pods


def _members(view: JobView) -> int:
    return view.status.current_round.members if state_of(view) in _RUNNING else 0


def _standbys(view: JobView) -> int:
    return sum(p.state == "Standby" for p in view.status.participants)
