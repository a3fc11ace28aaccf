"""Fills the memory of a control group, until the kernel kills a process of it.

    python -m devcluster.kubelet.memory GROUP VICTIM SECONDS

What it fills is not mapped: it counts in the group, but not as this process's own, so the kernel takes the
victim, which it is told to prefer. If that was not enough, it takes this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

_CHUNK = 1 << 20
_PREFERENCE = 500
"""Of this process, where the victim's is 1000 and that of others 0."""


def fill(group: Path, victim: int, seconds: float) -> None:
    """Do so in a process of its own; returns when the victim or that process has ended, or time is over."""
    command = [sys.executable, "-m", "devcluster.kubelet.memory", str(group), str(victim), str(seconds)]
    subprocess.run(command, check=False, timeout=seconds + 30)


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    """Fill it."""
    group, victim, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    end, file, chunk = time.monotonic() + seconds, os.memfd_create("memory"), bytes(_CHUNK)
    Path("/proc/self/oom_score_adj").write_text(str(_PREFERENCE))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    while runs(victim) and time.monotonic() < end:
        os.write(file, chunk)


if __name__ == "__main__":
    main()
