"""What is to be written into a job's Workloads. Pure; it may be asked any number of times.

No quota is given back that a pod still uses: ``Use.pods`` counts those that end, too. What is given back in
one pass is never more than what is left when these pods are subtracted.

* The base comes first; extras are made while it is admitted.
* A base that has to leave takes everything with it. Kueue may leave extras admitted (it fills back after a
  preemption, and deactivates one Workload alone); they are deleted when the pods are gone, and then the base
  is cleared.
* An extra that has to leave is cleared when as many pods have gone. One of several pods that was preempted is
  deleted, and smaller ones are made in its place: what is left of the quota may be less than it needs whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from elasticjob_operator.plan.queue.workloads import (
    PREEMPTED,
    Workload,
    base_count,
    base_name,
    base_of,
    chunks,
    extra_name,
    extras_of,
)
from elasticjob_operator.plan.state.model import Job


@dataclass(frozen=True)
class Use:
    """What a job has. ``pods``: how many have not ended, or are being made. ``joined``: how many have joined
    an established round, or stand by for the next; 0 without one. ``running``: how many run, or have done
    their part of the round; a round that ends for a moment changes nothing of that. ``outcome``: Complete or
    Failed of a job that has ended, with its ``message``."""

    pods: int = 0
    joined: int = 0
    running: int = 0
    outcome: str = ""
    message: str = ""


@dataclass(frozen=True)
class Create:
    """Make a Workload: the base where ``priority`` is None (it follows the job's class), or an extra. The
    pods of an extra get nodes of these ``flavors``, those of the base; Kueue might choose others."""

    name: str
    queue: str
    count: int
    priority: int | None = None
    flavors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clear:
    """Give quota back that Kueue has asked for: the second step of an eviction."""

    workload: Workload


@dataclass(frozen=True)
class Release:
    """Delete it, and take our finalizer off."""

    workload: Workload


@dataclass(frozen=True)
class Resize:
    """Lower its number of pods."""

    workload: Workload
    count: int


@dataclass(frozen=True)
class Reprioritize:
    """Give an extra another priority."""

    workload: Workload
    priority: int


@dataclass(frozen=True)
class SetReady:
    """Say that its pods have joined: Kueue evicts a Workload whose pods are not ready in time."""

    workload: Workload


@dataclass(frozen=True)
class SetUnready:
    """Say that they do not all run any more, or, after another admission, not yet."""

    workload: Workload


@dataclass(frozen=True)
class Finish:
    """Say that the job has ended, which frees the quota; the Workload stays as a record."""

    workload: Workload
    outcome: str
    message: str


Change = Create | Clear | Release | Resize | Reprioritize | SetReady | SetUnready | Finish


class _Room:
    """How much quota may be given back: what is held less what is used."""

    def __init__(self, workloads: Iterable[Workload], pods: int) -> None:
        self.pods = sum(one.count for one in workloads if one.holds_quota) - pods

    def take(self, workload: Workload, pods: int | None = None) -> bool:
        """Whether this number of pods of a Workload, by default all, may go; they are subtracted if so."""
        needed = (workload.count if pods is None else pods) if workload.holds_quota else 0
        if needed > max(self.pods, 0):
            return False
        self.pods -= needed
        return True


def changes(job: Job, workloads: Iterable[Workload], use: Use) -> tuple[Change, ...]:
    """Return what is to be written, in this order. ``job`` is as its user wants it."""
    found = tuple(workloads)
    base, extras = base_of(found), extras_of(found)
    room = _Room(found, use.pods)
    if base is not None and base.live and not use.outcome and not job.spec.suspend:
        beyond = tuple(_beyond(job, base, extras, room))
        given_back = {one.workload.name for one in beyond if isinstance(one, Release)}
        staying = [one for one in extras if one.name not in given_back]
        return (*beyond, *_prioritize(base, staying), *_ready(job, base, staying, use))
    gone = [one for one in extras if _is_leaving(one)]
    released = [Release(one) for one in _smallest_first(extras, but=gone) if room.take(one)]
    if len(gone) + len(released) < len(extras):
        return tuple(released)
    return (*released, *_base(job, base, use, room))


def _base(job: Job, base: Workload | None, use: Use, room: _Room) -> Iterator[Change]:
    """What becomes of a base that is not admitted, or no longer, when no extra holds quota."""
    if base is None:
        if job.queue is not None and not use.outcome and not job.spec.suspend:
            yield Create(base_name(job), job.queue.name, base_count(job))
    elif _is_leaving(base) or not room.take(base):
        return
    elif use.outcome:
        if base.kept or not base.finished:
            yield Finish(base, use.outcome, use.message)
    elif job.spec.suspend or base.deleting or base.finished:
        yield Release(base)
    elif base.must_leave:
        yield Clear(base)
    elif not base.reserved and _is_outdated(job, base):
        yield Release(base)


def _is_leaving(workload: Workload) -> bool:
    """Whether nothing of ours keeps it any more."""
    return workload.deleting and not workload.kept


def _is_outdated(job: Job, base: Workload) -> bool:
    """Whether it asks for something else than the job does by now. Of one that has quota nothing may change
    but its count."""
    queue = job.queue
    asked = ("", "") if queue is None else (queue.name, queue.priority_class)
    return (base.queue, base.priority_class) != asked or base.count != base_count(job)


def _beyond(job: Job, base: Workload, extras: Sequence[Workload], room: _Room) -> Iterator[Change]:
    """Bring the extras of an admitted base to what the job asks for."""
    gone = {one.name for one in extras if one.deleting or one.finished}
    for one in _smallest_first(one for one in extras if one.must_leave or one.deleting or one.finished):
        if _is_leaving(one) or not room.take(one):
            continue
        if one.must_leave and not one.deleting and (one.count == 1 or one.evicted != PREEMPTED):
            yield Clear(one)
        else:
            gone.add(one.name)
            yield Release(one)
    there = [one for one in extras if one.name not in gone]
    missing = job.spec.pods - base.count - sum(one.count for one in there)
    if missing > 0:
        yield from _more(job, base, {one.name for one in extras}, missing)
    elif missing < 0:
        yield from _fewer(base, [one for one in there if not one.must_leave], -missing, room)


def _more(job: Job, base: Workload, taken: set[str], missing: int) -> Iterator[Create]:
    """Extras for the missing pods."""
    free = (name for number in itertools.count() if (name := extra_name(job, number)) not in taken)
    for count, name in zip(chunks(job.spec, job.spec.pods - missing), free, strict=False):
        yield Create(name, base.queue, count, base.priority - 1, base.flavors)


def _fewer(base: Workload, extras: Sequence[Workload], surplus: int, room: _Room) -> Iterator[Change]:
    """Give back what the job no longer asks for: what waits before what is admitted, whole ones before parts
    of one."""
    left = []
    for one in sorted(extras, key=lambda one: (one.holds_quota, -one.count)):
        if one.count <= surplus and room.take(one):
            surplus -= one.count
            yield Release(one)
        else:
            left.append(one)
    for one in left:
        if surplus and not one.holds_quota:
            surplus = max(0, surplus - one.count)
            yield Release(one)  # what is still wanted of it is made again
        elif 0 < surplus < one.count and room.take(one, surplus):
            yield Resize(one, one.count - surplus)
            surplus = 0
    if 0 < surplus < base.count and room.take(base, surplus):
        yield Resize(base, base.count - surplus)


def _prioritize(base: Workload, extras: Sequence[Workload]) -> Iterator[Reprioritize]:
    """Kueue changes the priority of a base with its class; extras have no class."""
    for one in extras:
        if one.priority != base.priority - 1 and not (one.deleting or one.finished or one.must_leave):
            yield Reprioritize(one, base.priority - 1)


def _ready(job: Job, base: Workload, extras: Sequence[Workload], use: Use) -> Iterator[SetReady | SetUnready]:
    """Those whose pods have joined, the base first: a pod that does not join costs an extra alone. A job that
    gets smaller lacks no pod."""
    covered = 0
    for one in (base, *(one for one in extras if one.live)):
        covered += one.count
        needed = min(covered, base_count(job)) if one is base else covered
        if not one.ready and min(use.joined, use.running) >= needed:
            yield SetReady(one)
        elif one.ready and use.running < min(needed, job.spec.pods):
            yield SetUnready(one)


def _smallest_first(workloads: Iterable[Workload], but: Sequence[Workload] = ()) -> list[Workload]:
    return sorted((one for one in workloads if one not in but), key=lambda one: one.count)
