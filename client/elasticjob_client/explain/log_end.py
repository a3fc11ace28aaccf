"""The end of a log that tells of a failure, without torchrun's own traceback: pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

READ_LINES = 200
"""How many lines from the end are read: torchrun's ending alone has more than twenty."""
_ENDING = re.compile(r"^[\w.]*RendezvousClosedError\b|\bRendezvousClosedError: the job has failed: ")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def without_torchruns(log: Sequence[str]) -> list[str]:
    """The log up to the traceback with which torchrun leaves a job that has failed: it follows what a worker
    has said. All of the log if it has none, or nothing before it."""
    last = next((at for at in reversed(range(len(log))) if _ENDING.search(log[at])), None)
    if last is None:
        return list(log)
    begin = _traceback_before(log, last)
    while begin and (before := _last_word(log, begin)) is not None and log[before].strip() in _CHAINED:
        begin = _traceback_before(log, before)
    kept = list(log[:begin])
    while kept and not kept[-1].strip():
        kept.pop()
    return kept or list(log)


def _traceback_before(log: Sequence[str], line: int) -> int:
    return next((at for at in reversed(range(line)) if _TRACEBACK.search(log[at])), line)


def _last_word(log: Sequence[str], line: int) -> int | None:
    """The last line before this one that is not blank."""
    return next((at for at in reversed(range(line)) if log[at].strip()), None)
