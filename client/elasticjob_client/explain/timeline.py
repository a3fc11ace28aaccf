"""A job's rounds as a bar of equal slices of time, for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum

from elasticjob_client.resource import ElasticJob, Round

_LOSSES = ("application", "infrastructure", "preemption")


class Slice(Enum):
    """What a job did in a slice of time; the worst if it did several things."""

    BEFORE = "before"
    """There was no job yet, or the status no longer has its rounds of that time."""
    TRAINING = "training"
    BETWEEN = "between"
    """No round ran."""
    LOSS = "loss"
    """A round ended, and not because the number of pods was changed."""


def timeline(job: ElasticJob, begin: datetime, end: datetime, width: int) -> list[Slice]:
    """The time from ``begin`` to ``end`` in ``width`` slices.

    The status has the last twenty rounds. Raises ValueError if there is no time to show.
    """
    if width < 1 or end <= begin:
        raise ValueError(f"nothing to show from {begin} to {end} in {width} slices")
    history = [one for one in reversed(job.status.round_history) if one.start_time] if job.status else []
    last = (job.status.completion_time if job.status else None) or end
    size = (end - begin) / width
    return [_slice(history, begin + n * size, begin + (n + 1) * size, last) for n in range(width)]


def _slice(history: list[Round], begin: datetime, end: datetime, last: datetime) -> Slice:
    first = history[0].start_time if history else None
    if first is None or end <= first or begin >= last:
        return Slice.BEFORE
    if any(_lost(one, begin, end) for one in history):
        return Slice.LOSS
    trained = sum((_overlap(one, begin, min(end, last)) for one in history), timedelta())
    return Slice.TRAINING if trained * 2 >= min(end, last) - max(begin, first) else Slice.BETWEEN


def _lost(one: Round, begin: datetime, end: datetime) -> bool:
    return bool(one.end and one.end.account in _LOSSES and one.end.time and begin <= one.end.time < end)


def _overlap(one: Round, begin: datetime, end: datetime) -> timedelta:
    assert one.start_time
    left = max(begin, one.start_time)
    right = min(end, one.end.time) if one.end and one.end.time else end
    return max(timedelta(), right - left)


def captions(rounds: Sequence[Round], begin: datetime, end: datetime, width: int) -> str:
    """A line for below the bar: the causes for which rounds ended, each below the slice in which it did.

    Where they would overlap, losses come before planned changes, and newer rounds before older ones.
    """
    ended = [one.end for one in rounds if one.end and one.end.time and begin <= one.end.time < end]
    ended.sort(key=lambda one: (one.account not in _LOSSES, -one.time.timestamp() if one.time else 0.0))
    line = [" "] * width
    for one in ended:
        assert one.time
        at = int((one.time - begin) / (end - begin) * width)
        text, left = f"└{one.cause}", at
        if at + len(text) > width:
            text, left = f"{one.cause}┘", at - len(one.cause)
        around = line[max(0, left - 1) : left + len(text) + 1]
        if left >= 0 and not "".join(around).strip():
            line[left : left + len(text)] = text
    return "".join(line).rstrip()


def span(job: ElasticJob, now: datetime) -> tuple[datetime, datetime] | None:
    """The span from the status's first round until now, or until the job's end; None without a round."""
    starts = [one.start_time for one in job.status.round_history if one.start_time] if job.status else []
    if not starts:
        return None
    assert job.status
    end = job.status.completion_time or now
    return (min(starts), end) if end > min(starts) else None
