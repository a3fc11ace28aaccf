"""What scripts and their libraries do. Each process calls itself by a name that the kernel cuts in the middle
of a letter, and by local rank 0. In the first round it leaves a child behind that ignores SIGTERM, and rank 0
fails.

Usage: habits.py FOLDER. Into it go the pids of those children (left-RANK), of those that still live in the
next round (alive-RANK), and the step at which the script was asked to stop (stopped-RANK).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from elasticjob import should_stop, stop_here

IGNORES = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
)


def lives(pid: str) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return "Z" not in Path("/proc", pid, "stat").read_text(errors="replace").rpartition(")")[2]
    except OSError:
        return False


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    ctypes.CDLL(None).prctl(15, ("é" * 8).encode(), 0, 0, 0)
    os.environ["LOCAL_RANK"] = "0"
    if os.environ["ELASTICJOB_ROUND"] == "1":
        child = subprocess.Popen(
            [sys.executable, "-c", IGNORES], stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        (folder / f"left-{rank}").write_text(str(child.pid))
        while rank == "0" and len(list(folder.glob("left-*"))) < 2:
            time.sleep(0.05)
        if rank == "0":
            os._exit(3)
    else:
        left = [path.read_text() for path in folder.glob("left-*")]
        (folder / f"alive-{rank}").write_text(" ".join(filter(lives, left)))
    for step in count(1):
        if should_stop(step):
            (folder / f"stopped-{rank}").write_text(str(step))
            stop_here()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
