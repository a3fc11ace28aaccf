"""`python -m benchmarks.script_calls`: nanoseconds of the calls that a script makes at each step.

`should_stop` is called while nothing is asked, and while a step far ahead is asked for, as it is for the
last few steps before a planned change. Beside them stand `report_progress` and a function of Python that does
nothing. Each call has a step that grows, as in a training loop.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import markdown
from elasticjob import report_progress, should_stop
from elasticjob.worker.progress import MAX_STEP, PROGRESS_DIR_ENV
from elasticjob.worker.stopping import ASKED_FILE, WORD_BYTES

CALLS = 200_000
RUNS = 7


def nothing(step: int) -> None:
    """What a call costs by itself."""
    del step


FUNCTIONS: dict[str, Callable[[int], object]] = {
    "a function that does nothing": nothing,
    "report_progress": report_progress,
    "should_stop, nothing asked": should_stop,
    "should_stop, a later step asked for": should_stop,
    "should_stop, outside an ElasticJob": should_stop,
}
ASKED = "should_stop, a later step asked for"
OUTSIDE = "should_stop, outside an ElasticJob"


def main() -> None:
    """Print the table; each line is measured in a process of its own, as a worker is."""
    if len(sys.argv) > 1:
        print(*measure(FUNCTIONS[sys.argv[1]]))
        return
    rows = []
    for name in FUNCTIONS:
        times = _in_a_worker(name)
        figures = f"{statistics.median(times):.0f}", f"{min(times):.0f} to {max(times):.0f}"
        rows.append([name, *figures])
    print(markdown.table(["call", "ns, median", f"of {RUNS} runs"], rows))


def measure(function: Callable[[int], object], calls: int = CALLS, runs: int = RUNS) -> list[float]:
    """Nanoseconds of a call, run by run; the loop around it is left in."""
    found = []
    for run in range(runs):
        steps = range(1 + run * calls, 1 + (run + 1) * calls)
        began = time.perf_counter_ns()
        for step in steps:
            function(step)
        found.append((time.perf_counter_ns() - began) / calls)
    return found


def _in_a_worker(name: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        asked = MAX_STEP if name == ASKED else 0
        (Path(folder) / ASKED_FILE).write_bytes(asked.to_bytes(WORD_BYTES, sys.byteorder))
        place = {} if name == OUTSIDE else {PROGRESS_DIR_ENV: folder, "LOCAL_RANK": "0"}
        command = [sys.executable, "-m", "benchmarks.script_calls", name]
        done = subprocess.run(
            command, env={**os.environ, **place}, capture_output=True, text=True, check=True
        )
    return [float(word) for word in done.stdout.split()]


if __name__ == "__main__":
    main()
