"""How this process takes over a worker's environment, folder, output and OOM score, or starts cold."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from .page import COLD, GONE, Page, Request, Unusable

PROCESS_NAME = "/proc/self/comm"
OOM_SCORE = "/proc/self/oom_score_adj"
IDLE_OOM_SCORE = 1000
"""While it waits, Linux kills it before a worker if memory is short."""


def command() -> list[str]:
    """What follows ``python -u``."""
    return list(sys.orig_argv[2:])


def become(request: Request, oom_score: str, early: Sequence[bytes]) -> list[bytes]:
    """Take over what a worker has otherwise: environment, folder, output, OOM score.

    ``early`` is what ``site`` has written to output and error output: it is there first. Returns what the
    imports have written there since.
    """
    write(OOM_SCORE, oom_score)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    late = [data[len(first) :] for data, first in zip(written(), early, strict=True)]
    for number, descriptor in enumerate((request.stdout, request.stderr), 1):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
        write_all(number, early[number - 1])
    for number, stream in enumerate((sys.__stdout__, sys.__stderr__), 1):
        _reopen(stream, number)
    return late


def written() -> list[bytes]:
    """What is in the files behind output and error output so far."""
    sizes = [os.fstat(number).st_size for number in (1, 2)]
    return [os.pread(number, size, 0) if size else b"" for number, size in enumerate(sizes, 1)]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def _reopen(stream: Any, number: int) -> None:
    """Let Python's stream see what its descriptor is now (whether it can seek), as the same object."""
    if type(stream) is not io.TextIOWrapper or type(stream.buffer) is not io.FileIO:
        raise Unusable("Python's output is not what it is in a worker (python -u)")
    raw = io.FileIO(number, "wb", closefd=False)  # not the old one: that remembers whether it can seek
    raw.name = stream.name
    encoding, errors = stream.encoding, stream.errors
    line, through = stream.line_buffering, stream.write_through
    stream.__init__(raw, encoding, errors, "\n", line, through)  # type: ignore[misc]
    vars(stream)["mode"] = "w"


def start_cold(request: Request, page: Page, why: str, state: bytes = COLD) -> None:
    """Replace this process by a cold start of the same command; torch sees no difference."""
    page.say(state, why)
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request.cwd)
        os.execve(sys.executable, [sys.executable, *request.args], request.env)
    finally:
        os._exit(GONE)


def raise_oom_score(score: str) -> None:
    """Let Linux kill this process before others. Raises Unusable if ``score``, its score so far, could not be
    set again."""
    write(OOM_SCORE, str(IDLE_OOM_SCORE))
    write(OOM_SCORE, score)
    if read(OOM_SCORE) != score:
        raise Unusable(f"{OOM_SCORE} cannot be set back to {score}")
    write(OOM_SCORE, str(IDLE_OOM_SCORE))


def read(path: str) -> str:
    """The text of a file in /proc; "" if it can't be read. A process name may end in half a letter."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""


def write(path: str, value: str) -> None:
    """Write to a file in /proc, if that is permitted."""
    try:
        with open(path, "w", errors="surrogateescape") as file:
            file.write(value)
    except OSError:
        pass
