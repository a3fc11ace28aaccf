"""Finds and kills what is left of an agent's workers (Linux; elsewhere it finds nothing)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Protocol


class Idle(Protocol):
    """Interpreters that wait to become workers (``elasticjob.warm_workers``)."""

    def idle_pids(self) -> frozenset[int]:
        """Those that are no workers yet."""

    def ranks(self, pid: int) -> tuple[str, str] | None:
        """RANK and LOCAL_RANK of a worker that one of them has become."""


class WorkerProcesses:
    """This agent's children, without those that only wait to become workers."""

    def __init__(self, idle: Idle | None = None) -> None:
        self._idle = idle

    def pids(self) -> list[int]:
        """Raises OSError where they can't be listed."""
        found = children(os.getpid())
        idle = self._idle.idle_pids() if self._idle is not None else frozenset()
        return [pid for pid in found if pid not in idle]

    def ranks(self, pid: int) -> tuple[str, str] | None:
        """RANK and LOCAL_RANK, where the process's own environment does not say them."""
        return self._idle.ranks(pid) if self._idle is not None else None


def children(pid: int) -> list[int]:
    """The processes whose parent is ``pid``. Raises OSError where they can't be listed, for want of
    descriptors, say."""
    found: list[int] = []
    if not os.path.isdir("/proc/self"):
        return found
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(name))
    return found


def kill_process_groups(pids: list[int]) -> list[int]:
    """Kill with SIGKILL the process groups that these processes lead (torch starts each worker in its
    own session); returns those that were there."""
    killed = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
                killed.append(pid)
    return killed
