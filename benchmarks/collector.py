"""`python -m benchmarks.collector`: how long Python's garbage collector holds up the operator's event loop.

A heap that grows as an operator's does that lists jobs, to two million objects, most of which stay. As
Python has it and with the operator's `GcTuning`, in turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import number, table
from elasticjob_operator.gc_tuning import GcTuning

_OURS = "the operator's"
_WAYS = ("Python's", _OURS)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collector", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns (default %(default)s)")
    parser.add_argument("--way", choices=_WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(asyncio.run(pauses(options.way == _OURS))))
        return
    rows = []
    for run in range(options.runs):
        for way in _WAYS:
            command = [sys.executable, "-m", "benchmarks.collector", f"--way={way}"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append((str(run + 1), way, number(max(found)), number(sum(found)), str(len(found))))
    print(table(("run", "settings", "longest pause, s", "all pauses, s", "collections"), rows))


async def pauses(ours: bool) -> list[float]:
    """Seconds of each collection."""
    found: list[float] = []
    began = 0.0

    def timed(phase: str, _: Mapping[str, Any]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            found.append(time.perf_counter() - began)

    gc.callbacks.append(timed)
    if ours:
        GcTuning(asyncio.get_running_loop()).start()
    kept = []
    for turn in range(600):
        kept.append([{"a": [1], "b": {"c": (turn, [one])}} for one in range(1000)])
        passing = [{"x": [one]} for one in range(3000)]
        await asyncio.sleep(0)
        del passing
    return found


if __name__ == "__main__":
    main()
