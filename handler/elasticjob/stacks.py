"""``python -m elasticjob.stacks``: where the workers of this container are now, without disturbing them.

``elasticjob stacks JOB`` runs it in each pod. It prints one JSON object for each worker that answers
(``elasticjob.worker.stack_signal``): rank, local rank, pid, and the stack of its main thread or why there is
none. Only a process that has the file and handles the signal is sent one, so none can end by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from elasticjob.worker.stack_signal import PREFIX, SIGNAL
from elasticjob.workers import processes
from elasticjob.workers.worker_list import listed

WAIT_SECONDS = 3.0
"""How long all workers together may take to answer."""
POLL_SECONDS = 0.01
_BIT = 1 << (SIGNAL - 1)


@dataclass(frozen=True)
class Worker:
    """A worker that can be asked. ``file`` leads to its file."""

    pid: int
    rank: int
    local_rank: int
    file: str


def find() -> list[Worker]:
    """The workers that are visible from here, by rank. A process that a worker has forked has its file, too,
    but not its id.

    An agent's list of workers decides which processes are workers, and their ranks; what a process states
    itself counts only without such a list."""
    said = listed()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        status = _status(int(name))
        if not status or not status.handles:
            continue
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{name}/fd"):
                file = f"/proc/{name}/fd/{number}"
                words = os.readlink(file).removeprefix("/memfd:").split(" ")[0].split(":")
                if len(words) == 4 and words[0] == PREFIX and int(words[1]) == status.own_pid:
                    ranks = said.get(_worker_above(int(name), said)) or (int(words[2]), int(words[3]))
                    found.append(Worker(int(name), *ranks, file))
                    break
    # A process that a worker has started with its environment came later.
    first: dict[tuple[int, int], Worker] = {}
    for worker in sorted(found, key=lambda one: _born(one.pid)):
        ours = _worker_above(worker.pid, said)
        first.setdefault((ours, -1) if ours else (0, worker.rank), worker)
    return sorted(first.values(), key=lambda one: (one.rank, one.local_rank, one.pid))


def _worker_above(pid: int, said: Mapping[int, object]) -> int:
    """The pid of the worker that this process is or descends from; 0 if it belongs to no worker."""
    while pid > 0 and pid not in said:
        process = _process(pid)
        pid = process.parent if process is not None else 0
    return max(pid, 0)


def ask(worker: Worker) -> int | None:
    """Make it write its stack; returns its file, to be given to ``answer``, or None if it is gone."""
    file = -1
    try:
        process = os.pidfd_open(worker.pid)
    except OSError:
        return None
    try:
        file = os.open(worker.file, os.O_RDWR | os.O_APPEND)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        status = _status(worker.pid)
        if status and status.handles:
            signal.pidfd_send_signal(process, SIGNAL)
            return file
    except OSError:
        pass
    finally:
        os.close(process)
    if file >= 0:
        os.close(file)
    return None


def answer(worker: Worker, file: int, deadline: float) -> tuple[str, str]:
    """Wait for its stack. Returns the stack, and why it is empty."""
    try:
        while True:
            status = _status(worker.pid)
            if not status:
                return "", "it has ended"
            if os.fstat(file).st_size and not _busy(worker.pid):
                text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
                return text.replace("\0", "").strip(), ""
            if time.monotonic() > deadline:
                return "", f"it has not answered within {WAIT_SECONDS:.0f} s (state {status.state})"
            time.sleep(POLL_SECONDS)
    finally:
        os.close(file)


def main() -> None:
    """Print the stacks, one JSON object in each line."""
    workers = find()
    asked = [(worker, ask(worker)) for worker in workers]
    deadline = time.monotonic() + WAIT_SECONDS
    for worker, file in asked:
        text, why = answer(worker, file, deadline) if file is not None else ("", "it has ended")
        said = {"rank": worker.rank, "localRank": worker.local_rank, "pid": worker.pid}
        print(json.dumps({**said, "stack": text, **({"error": why} if why else {})}), flush=True)


def _busy(pid: int) -> bool:
    """Whether the signal still waits, or is being handled, in one of its threads."""
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
        return any(found.busy for one in threads if (found := _status(pid, f"task/{one}/")))
    return False


@dataclass(frozen=True)
class _Status:
    """A process or thread, as the kernel shows it. ``own_pid`` is its pid in its own namespace."""

    state: str
    own_pid: int
    handles: bool
    busy: bool


def _status(pid: int, thread: str = "") -> _Status | None:
    """None if it is gone."""
    lines = _read(pid, f"{thread}status").decode(errors="replace").splitlines()
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "SigCgt" not in fields:
        return None
    sets = {name: int(fields[name], 16) & _BIT for name in ("SigCgt", "SigPnd", "ShdPnd", "SigBlk")}
    return _Status(
        state=fields["State"],
        own_pid=int(fields["NSpid"].split()[-1]) if "NSpid" in fields else pid,
        handles=bool(sets.pop("SigCgt")),
        busy=any(sets.values()),
    )


def _born(pid: int) -> int:
    """When it was started, in the kernel's ticks; 0 if it is gone."""
    process = _process(pid)
    return process.born if process is not None else 0


def _process(pid: int) -> processes.Process | None:
    return processes.parse(pid, _read(pid, "stat"))


def _read(pid: int, name: str) -> bytes:
    """A file in ``/proc/PID``; nothing if it can't be read, also if descriptors are exhausted."""
    try:
        return processes.read(pid, name)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
