"""The parent of every process of one cluster, which ends them all when its own parent ends.

Promises: when the process that made the cluster is gone, by whatever signal, no process of the cluster and
no file of its state folder is left; and when the supervisor itself is killed, the kernel kills its children
(PR_SET_PDEATHSIG). A process of its own, because that signal is bound to the thread that forked: a cluster
made in a test's worker thread would lose its components with the thread. This process has one thread.

It notices the end of its parent in two ways, since either alone can fail: the control socket closes (a
forked copy of the parent may hold it open), or getppid changes (seen within a tick). Processes that a
component started and left behind are its children too (PR_SET_CHILD_SUBREAPER) and are ended with the rest.

Run as a file with `python -I`, so standard library only. Control messages are JSON, one per packet:

    {"op": "spawn", "argv": [...], "env": {...}, "log": path, "grace": seconds}  -> {"pid": pid}
    {"op": "signal", "pid": pid, "signal": number}                               -> {"sent": bool}
    {"op": "status", "pid": pid}                                                 -> {"exit": code or null}
    {"op": "remove", "cgroups": [path, ...]}                                     -> {}

An exit code below zero is the signal that ended the process. Only children that were not reaped yet are
signalled, so a reused process id is never hit. `grace` is how long a component may clean up after SIGTERM
when the cluster ends; 0 means SIGKILL at once, which is right for everything that keeps only disposable data.
`remove` is for the end, too: of control groups the kernel only takes the processes away.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PACKET_BYTES = 1 << 17
TICK_SECONDS = 0.25
_KILL_TIMEOUT_SECONDS = 20.0
_CGROUP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """The children of this process and what became of them."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._grace: dict[int, float] = {}
        self._exits: dict[int, int] = {}
        self.cgroups: list[str] = []
        """Those of the cluster, to be removed when it has ended."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carry out one control message."""
        self.reap()
        match message["op"]:
            case "spawn":
                return {"pid": self._spawn(message)}
            case "signal":
                return {"sent": self._signal(message["pid"], message["signal"])}
            case "status":
                return {"exit": self._exits.get(message["pid"])}
            case "remove":
                self.cgroups += message["cgroups"]
                return {}
            case unknown:
                raise ValueError(f"unknown op {unknown!r}")

    def reap(self) -> None:
        """Collect the children that have ended, orphans that were adopted included."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._exits[pid] = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """End every child: those with a grace by SIGTERM first, then all of them by SIGKILL."""
        graceful = {pid: grace for pid, grace in self._grace.items() if grace > 0}
        for pid in graceful:
            self._signal(pid, signal.SIGCONT)
            self._signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + max(graceful.values(), default=0.0)
        while time.monotonic() < deadline and any(pid not in self._exits for pid in graceful):
            self.reap()
            time.sleep(0.02)
        deadline = time.monotonic() + _KILL_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            # Killing a child hands its own children to this process: again until there are none.
            children = _children_of(os.getpid())
            if not children:
                return
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            self.reap()

    def _spawn(self, message: dict[str, Any]) -> int:
        grace = float(message["grace"])
        with open(message["log"], "ab") as log:
            child = subprocess.Popen(
                message["argv"],
                env=message["env"],
                cwd=Path(message["log"]).parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._tie_to_parent(signal.SIGTERM if grace > 0 else signal.SIGKILL),
            )
        # The object is kept: when it is collected, subprocess reaps the child behind our back.
        self._children[child.pid] = child
        self._grace[child.pid] = grace
        self._exits.pop(child.pid, None)
        return child.pid

    def _tie_to_parent(self, death_signal: signal.Signals) -> Callable[[], None]:
        supervisor = os.getpid()

        def tie() -> None:
            self._libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)  # the supervisor died between fork and prctl

        return tie

    def _signal(self, pid: int, number: int) -> bool:
        if pid not in self._children or pid in self._exits:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True


def answer(supervisor: Supervisor, control: socket.socket) -> bool:
    """Carry out the next control message if it comes before the socket's time is up; false: none will come.

    Raises OSError if the other end has died.
    """
    supervisor.reap()
    try:
        packet = control.recv(PACKET_BYTES)
    except TimeoutError:
        return True
    if not packet:
        return False
    try:
        reply = supervisor.handle(json.loads(packet))
    except (OSError, subprocess.SubprocessError) as error:
        reply = {"error": str(error)}
    control.send(json.dumps(reply).encode())
    return True


def remove_cgroups(paths: Iterable[str], seconds: float = _CGROUP_SECONDS) -> None:
    """Remove control groups, those below them first. Their processes have been killed: it waits for the last.

    What is still in use after that time is left.
    """
    deadline = time.monotonic() + seconds
    for path in paths:
        for folder, _, _ in os.walk(path, topdown=False):
            while True:
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    pass
                except OSError:
                    if time.monotonic() < deadline:
                        time.sleep(0.02)
                        continue
                break


def _children_of(parent: int) -> list[int]:
    children = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The command's name may hold spaces and brackets: fields are counted from its last bracket.
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            children.append(int(entry))
    return children


def _remove(state_dir: Path) -> None:
    """Remove the state folder, unless something is mounted below it: that is not ours to delete."""
    below = f"{state_dir.resolve()}/"
    with open("/proc/self/mountinfo") as mounts:
        mounted = [line.split()[4] for line in mounts if line.split()[4].startswith(below)]
    if mounted:
        print(f"devcluster: {state_dir} is left behind: mounted below it: {mounted}", file=sys.stderr)
        return
    shutil.rmtree(state_dir, ignore_errors=True)


def is_supervised(state_dir: Path) -> bool:
    """Whether a supervisor lives that owns this state folder."""
    try:
        folder = os.open(state_dir, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def main(control_fd: int, parent: int, state_dir: Path) -> None:
    """Serve the control socket until the parent is gone, then clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    supervisor = Supervisor()
    state_dir.mkdir(mode=0o700, parents=True)
    lock = os.open(state_dir, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process is gone, see is_supervised
    # The parent's output may be a pipe whose reader waits for its end: this process must not keep it open.
    log = os.open(state_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    with socket.socket(fileno=control_fd) as control:
        control.settimeout(TICK_SECONDS)
        control.send(b"{}")  # the state folder is there
        try:
            while os.getppid() == parent and answer(supervisor, control):
                pass
        except OSError:
            pass  # the parent died with its half of the socket
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            supervisor.end()
            remove_cgroups(supervisor.cgroups)
            _remove(state_dir)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
