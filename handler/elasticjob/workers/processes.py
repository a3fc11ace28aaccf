"""Reads processes from ``/proc`` (Linux; other systems show no processes).

All is read as bytes: a process may have any name, and the kernel cuts it in the middle of a letter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class Process:
    """One process. ``born`` is in the kernel's ticks since the machine's start: with the pid, it names a
    process for good."""

    pid: int
    parent: int
    group: int
    session: int
    born: int
    state: str
    name: str = ""

    @property
    def alive(self) -> bool:
        """Whether it still runs, or could; one that has ended waits for its parent."""
        return self.state not in ("Z", "X")


def find(pid: int) -> Process | None:
    """The process with this pid; None if it is gone. Raises OSError if descriptors are exhausted."""
    return parse(pid, read(pid, "stat"))


def parse(pid: int, stat: bytes) -> Process | None:
    """Parse ``/proc/PID/stat``. The name is in brackets, and may contain brackets and spaces."""
    name, _, rest = stat.rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        born=int(fields[19]),
        state=fields[0].decode("ascii", "replace"),
        name=name.partition(b"(")[2].decode("utf-8", "replace"),
    )


def table() -> dict[int, Process]:
    """All processes that are seen from here, by pid. Raises OSError if they can't be listed."""
    if not os.path.isdir("/proc/self"):
        return {}
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: one for pid in pids if (one := find(pid)) is not None}


def read(pid: int, name: str) -> bytes:
    """A file in ``/proc/PID``; nothing if it can't be read. Raises OSError if this process has no descriptors
    left."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        return b""


def children(pid: int) -> list[int] | None:
    """The processes whose parent is ``pid``; None if this kernel does not list them."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.readall().split())
    except FileNotFoundError:
        return None if os.path.isdir(f"/proc/{pid}/task/{pid}") else found
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
    return found


def descendants(pids: Iterable[int]) -> list[Process]:
    """The children of these processes, their children, and so on. Raises OSError if they can't be listed."""
    found: dict[int, Process] = {}
    new = list(pids)
    while new:
        below = children(new.pop())
        if below is None:
            return _descendants_in(table(), pids)
        for pid in below:
            one = find(pid)
            if one is not None and pid not in found:
                found[pid] = one
                new.append(pid)
    return list(found.values())


def _descendants_in(processes: dict[int, Process], pids: Iterable[int]) -> list[Process]:
    known, grows = set(pids), True
    while grows:
        more = {one.pid for one in processes.values() if one.parent in known} - known
        known |= more
        grows = bool(more)
    return [processes[pid] for pid in known if pid in processes and pid not in set(pids)]


def send(pid: int, born: int, number: signal.Signals, group: bool = False) -> bool:
    """Send a signal to the process that was born then, or to its whole ``group`` if it leads one; never to
    another that has its number by now. Whether it was there."""
    try:
        file = os.pidfd_open(pid)
    except (AttributeError, OSError):  # gone, or there are no such files
        file = -1
    try:
        one = find(pid)
        if one is None or one.born != born:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group and one.group == pid:
                os.killpg(pid, number)
            elif file >= 0:
                signal.pidfd_send_signal(file, number)
            else:
                os.kill(pid, number)
            return True
        return False
    finally:
        if file >= 0:
            os.close(file)


def error_file(pid: int) -> str:
    """The file in which this process's error output ends, "" if it goes where this process's own goes, or to
    no file."""
    return _file_behind(pid, 2)


def output_file(pid: int) -> str:
    """The same of its output."""
    return _file_behind(pid, 1)


def _file_behind(pid: int, descriptor: int) -> str:
    try:
        path, own = (os.readlink(f"/proc/{one}/fd/{descriptor}") for one in (pid, "self"))
    except OSError:
        return ""
    is_file = path.startswith("/") and not path.startswith(("/dev/", "/memfd:"))
    return os.fsencode(path).decode("utf-8", "replace") if is_file and path != own else ""
