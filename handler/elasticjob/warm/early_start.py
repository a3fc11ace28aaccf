"""Starts warm interpreters before torchrun itself has imported torch: they import while torchrun does, and
while it waits for a round.

``begin`` runs first in torchrun's process. ``take`` hands its interpreters to ``WarmWorkers``, in the same
process, when that knows what torch will start. The others are ended, at the latest with torchrun: an
interpreter ends when its socket is closed. This module imports nothing slow, and raises nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elasticjob.warm.container_memory import CGROUP, read_memory
from elasticjob.warm.eligibility import Start, imports, refusal, script_path
from elasticjob.warm.interpreter import WarmInterpreter, works
from elasticjob.warm.interpreter_count import Memory, count
from elasticjob.warm.torchrun_command import environment, serves, torchruns_own, workers

_made: dict[int, WarmInterpreter] = {}
_more: tuple[str, ...] = ()
"""The modules that they import beside torch."""


def begin(
    command: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    processors: int | None = None,
    memory: Callable[[], Memory | None] = read_memory,
) -> None:
    """Make interpreters if ``command`` (as ``sys.orig_argv``) is a torchrun with our backend and warm ones.

    It makes at most one for each processor but one, which is left to torchrun's own imports: training cannot
    start before torchrun has joined.
    """
    global _more
    try:
        args = torchruns_own(command)
        found = None if args is None or _made or sys.platform != "linux" else workers(args, environ)
        if found is None:
            return
        spare = (_processors() if processors is None else processors) - 1
        number = min(count(memory(), found.number, 0).number, spare)
        env = environment(environ, found.number)
        starts = [
            Start((sys.executable, *found.of(rank)), env, os.getcwd()) for rank in range(max(0, number))
        ]
        if not starts or refusal(starts[0].args, sys.executable) or not works(sys.executable, env):
            return
        atexit.register(end)
        _more = found.imports
        for rank, start in enumerate(starts):
            _made[rank] = WarmInterpreter(start, imports(script_text(start), found.imports))
    except Exception:  # noqa: BLE001 - torchrun must start anyway, and logging is not set up yet
        end()


def take(starts: Mapping[int, Start], more: Sequence[str]) -> dict[int, WarmInterpreter]:
    """Hand over the interpreters that can be these workers, by local rank, and end the others. ``more``: the
    modules that they must have imported beside torch."""
    taken: dict[int, WarmInterpreter] = {}
    for rank in list(_made):
        start = starts.get(rank)
        if start is not None and _more == tuple(more) and serves(_made[rank].start, start):
            taken[rank] = _made.pop(rank)
            taken[rank].start = start
    end()
    return taken


def end() -> None:
    """End the interpreters that were not taken."""
    while _made:
        _made.popitem()[1].end()


def script_text(start: Start) -> str:
    """The text of the script that is to run, "" if it can't be read."""
    path = script_path(start)
    try:
        return Path(path).read_text(errors="replace") if path else ""
    except OSError:
        return ""


def _processors(cgroup: Path = CGROUP) -> int:
    """How many processors this container may use: by affinity, and by its limit, rounded down (v2, v1)."""
    number = len(os.sched_getaffinity(0))
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
            if int(quota) > 0:
                return min(number, int(quota) // int(period))
        except (OSError, ValueError):  # "max": no limit
            continue
    return number
