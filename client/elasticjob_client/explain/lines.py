"""Which lines of which pods are meant, and in which order they are shown: pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from elasticjob_client.pods import Pod, of_rank
from elasticjob_client.resource import ElasticJob

BEFORE_FAILURE = timedelta(seconds=30)
"""How much of what led to a failure is shown with it."""
AFTER_ROUND = timedelta(seconds=5)
"""What workers still say when their round is over, and the next has not begun."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A line of a pod's log. ``time`` is None if the log was read without times, or begins without one."""

    pod: str
    text: str
    rank: int | None = None
    time: datetime | None = None


class Window(msgspec.Struct, frozen=True):
    """A span of time; None is an open end."""

    since: datetime | None = None
    until: datetime | None = None

    def has(self, time: datetime | None) -> bool:
        """Whether a line of this time is inside; one without a time is."""
        if time is None:
            return True
        return (self.since is None or time >= self.since) and not self.is_over(time)

    def is_over(self, time: datetime) -> bool:
        """Whether this time is after the end."""
        return self.until is not None and time > self.until


class ToShow(msgspec.Struct, frozen=True):
    """Which pods' logs are wanted, and from what time."""

    job: ElasticJob
    pods: list[Pod]
    window: Window


def window(job: ElasticJob, number: int | None = None, since_failure: bool = False) -> Window:
    """The time of a round, or from shortly before the last failure on.

    Raises ValueError if the status does not have the round, or no failure.
    """
    if number is not None:
        history = job.status.round_history if job.status else []
        found = next((one for one in history if one.number == number), None)
        if found is None:
            there = f"{history[-1].number} to {history[0].number}" if history else "no round"
            raise ValueError(f"round {number} is not in the status of {job.name}, which has {there}")
        ended = found.end.time if found.end else None
        following = [one.start_time for one in history if one.number > number and one.start_time]
        until = min([ended + AFTER_ROUND, *following]) if ended else None
        return Window(found.start_time, until)
    if since_failure:
        history = job.status.round_history if job.status else []
        failure = job.status.last_failure if job.status else None
        if failure is None or failure.time is None:
            raise ValueError(f"{job.name} has had no failure")
        ended = next((one.end.time for one in history if one.number == failure.round and one.end), None)
        return Window((ended or failure.time) - BEFORE_FAILURE)
    return Window()


def chosen(job: ElasticJob, pods: Sequence[Pod], rank: int | None) -> list[Pod]:
    """The pods whose logs are meant: those of a group rank, or all; only such as have or had a container."""
    mine = list(pods) if rank is None else of_rank(job, pods, rank)
    return [pod for pod in mine if pod.started or pod.ended]


class Reader:
    """Reads the lines of one log, one after the other, as the kubelet writes them."""

    def __init__(self, pod: str, with_times: bool) -> None:
        self._pod, self._with_times = pod, with_times
        self._time: datetime | None = None

    def line(self, text: str, rank: int | None) -> Line:
        """One without a time, such as of what the kubelet itself says, has that of the line before it."""
        if self._with_times:
            stamp, _, rest = text.partition(" ")
            with suppress(msgspec.ValidationError):
                self._time, text = msgspec.convert(stamp, datetime), rest
        return Line(pod=self._pod, text=text, rank=rank, time=self._time)


def in_time(logs: Iterable[Iterable[Line]], shown: Window) -> Iterator[Line]:
    """Lines of several pods in the order of their times; a line without one follows the one before it."""
    return (
        found
        for _, found in heapq.merge(*(_timed(log) for log in logs), key=lambda pair: pair[0])
        if shown.has(found.time)
    )


def _timed(log: Iterable[Line]) -> Iterator[tuple[float, Line]]:
    last = 0.0
    for found in log:
        last = found.time.timestamp() if found.time else last
        yield last, found
