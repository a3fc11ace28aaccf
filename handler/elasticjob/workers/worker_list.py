"""Which processes are workers: their agent writes it into the round's folder for ``elasticjob.stacks``."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elasticjob.worker.stack_signal import FOLDER_PREFIX

if TYPE_CHECKING:
    from elasticjob.workers.torch_agent import AgentWorker


def workers_file() -> str:
    """Name of the file in a round's folder in which an agent of this PID namespace lists its workers. Pods
    with hostIPC share /dev/shm, and the same pid is another process in each."""
    try:
        return f"workers-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "workers"


def write_list(folder: str, workers: Sequence[AgentWorker]) -> None:
    """List the agent's workers in the round's ``folder``: a line for each, with pid, RANK and LOCAL_RANK.
    Never raises OSError; writes nothing if ``folder`` is empty."""
    lines = (f"{worker.pid} {worker.rank} {worker.local_rank}\n" for worker in workers)
    with contextlib.suppress(OSError):
        if folder:
            Path(folder, workers_file()).write_text("".join(lines))


def listed() -> dict[int, tuple[int, int]]:
    """RANK and LOCAL_RANK by pid, as the agents of this PID namespace have written them down."""
    found: dict[int, tuple[int, int]] = {}
    for parent in ("/dev/shm", tempfile.gettempdir()):
        for file in Path(parent).glob(f"{FOLDER_PREFIX}*/{workers_file()}"):
            for line in _lines(file):
                words = line.split()
                if len(words) == 3 and all(word.isdecimal() for word in words):
                    pid, rank, local_rank = map(int, words)
                    found[pid] = rank, local_rank
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
