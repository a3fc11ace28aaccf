"""Times as people read them."""

from __future__ import annotations

from datetime import datetime

_DAY = 86400
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, _DAY)


def duration(seconds: float) -> str:
    """Two units at most, as kubectl has it: 45s, 3m12s, 5h, 2d3h."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    for unit, size, below, small in (("m", 60, "s", 1), ("h", 3600, "m", 60), ("d", 86400, "h", 3600)):
        if whole < size * (60 if unit == "m" else 24) or unit == "d":
            rest = whole % size // small
            return f"{whole // size}{unit}" + (f"{rest}{below}" if rest and whole // size < 10 else "")
    raise AssertionError("days have no end")


def milliseconds(value: int | None) -> str:
    """Short where it is short; "-" if it is not known."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value} ms"
    if value < 60_000:
        return f"{value / 1000:.1f} s"
    return f"{value // 1000} s" if value < 120_000 else duration(value / 1000)


def ticks(seconds: float) -> list[int]:
    """Round numbers of seconds from 0 to this, seven at most, for the axis of a drawing."""
    most = max(1, int(seconds))
    step = next((step for step in _STEPS if most // step <= 6), -(-most // (6 * _DAY)) * _DAY)
    return list(range(0, most + 1, step))


def age(since: datetime | None, now: datetime) -> str:
    """How long ago; "-" if it is not known."""
    return "-" if since is None else duration((now - since).total_seconds())
