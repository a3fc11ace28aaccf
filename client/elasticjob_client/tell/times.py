"""Times as people read them."""

from __future__ import annotations

from datetime import datetime


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
    return (
        f"{value} ms"
        if value < 1000
        else f"{value / 1000:.1f} s"
        if value < 60_000
        else duration(value / 1000)
    )


def age(since: datetime | None, now: datetime) -> str:
    """How long ago; "-" if it is not known."""
    return "-" if since is None else duration((now - since).total_seconds())
