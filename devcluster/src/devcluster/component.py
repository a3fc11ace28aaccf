"""One process of a cluster: start it, wait until it is ready, stop, kill, freeze and restart it.

The processes are children of the supervisor (see `devcluster.supervisor` for why); here is its client.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devcluster import supervisor
from devcluster.wait import wait_for

READY_TIMEOUT_SECONDS = 180.0
"""After that long a component does not come up. An API server needs 2 s, or minutes if all CPUs are busy."""
# An API server that has open watches may take this long to end after SIGTERM.
_STOP_TIMEOUT_SECONDS = 60.0
# The disks of nodes with images hold some 100,000 files; two minutes were too few on a busy machine.
_END_TIMEOUT_SECONDS = 900.0
_LOG_TAIL_LINES = 15


class ComponentFailedError(RuntimeError):
    """A component ended, or was not ready in time; the message has the end of its log."""


class ParentClient:
    """Talks to the parent of some processes, which starts and signals them. Usable from any thread."""

    def __init__(self, control: socket.socket, whose: str) -> None:
        """`whose` names the parent when it has ended."""
        self._control = control
        self._whose = whose
        self._lock = threading.Lock()
        self._control.settimeout(_END_TIMEOUT_SECONDS)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], log: Path, grace: float) -> int:
        """Start a process and return its id. Raises ComponentFailedError if it can't be started."""
        reply = self._ask({"op": "spawn", "argv": argv, "env": env, "log": str(log), "grace": grace})
        if "error" in reply:
            raise ComponentFailedError(f"could not start {argv[0]}: {reply['error']}")
        return int(reply["pid"])

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """Send a signal to one of the cluster's processes; False if that has ended."""
        return bool(self._ask({"op": "signal", "pid": pid, "signal": int(number)})["sent"])

    def exit_code(self, pid: int) -> int | None:
        """None while the process lives; below zero is the signal that ended it."""
        code: int | None = self._ask({"op": "status", "pid": pid})["exit"]
        return code

    def _ask(self, message: dict[str, object]) -> dict[str, Any]:
        with self._lock:
            self._control.send(json.dumps(message).encode())
            packet = self._control.recv(supervisor.PACKET_BYTES)
        if not packet:
            raise RuntimeError(f"{self._whose} has ended, and with it all that it has started")
        reply: dict[str, Any] = json.loads(packet)
        return reply


class SupervisorClient(ParentClient):
    """Starts the supervisor, which makes `state_dir`, and talks to it."""

    def __init__(self, state_dir: Path) -> None:
        """Raises RuntimeError if `state_dir` can't be made, for example because it is there already."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    supervisor.__file__,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    str(state_dir),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends the cluster in order
            )
        super().__init__(control, "the cluster's supervisor")
        if not self._control.recv(supervisor.PACKET_BYTES):
            self._process.wait(_END_TIMEOUT_SECONDS)
            raise RuntimeError(f"the supervisor could not make {state_dir}: its message is on stderr")

    def remove_at_end(self, cgroups: Sequence[Path]) -> None:
        """Let these control groups be removed when all processes of the cluster have ended."""
        self._ask({"op": "remove", "cgroups": [str(path) for path in cgroups]})

    def end(self) -> None:
        """End all processes and remove the state folder. May be called twice."""
        self._control.close()
        try:
            self._process.wait(_END_TIMEOUT_SECONDS)
        finally:
            self._process.kill()  # its children die with it
            self._process.wait()


class Component:
    """A process of the cluster and the faults that can be done to it.

    `ready` is polled after each start with the process's id. `ready_timeout` and `grace` are seconds; the
    latter is what the process gets to clean up when the cluster ends (0: it is killed at once). One that ends
    before it is ready and has said `again_if` is started again, as systemd would.
    """

    def __init__(
        self,
        name: str,
        parent: ParentClient,
        argv: Sequence[str],
        log: Path,
        ready: Callable[[int], bool],
        *,
        env: Mapping[str, str] | None = None,
        ready_timeout: float = READY_TIMEOUT_SECONDS,
        grace: float = 0.0,
        again_if: str = "",
    ) -> None:
        self.name = name
        self.log = log
        self._parent = parent
        self._argv = list(argv)
        self._env = {**os.environ, **(env or {})}
        self._ready = ready
        self._ready_timeout = ready_timeout
        self._grace = grace
        self._again_if = again_if
        self._pid: int | None = None
        self._log_begins = 0

    @property
    def pid(self) -> int:
        """The id of the process. Raises RuntimeError if it was never started."""
        if self._pid is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the process lives; a frozen one does."""
        return self._pid is not None and self._parent.exit_code(self._pid) is None

    def launch(self) -> None:
        """Start the process without waiting for it. Raises RuntimeError if it is running."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already, as process {self._pid}")
        self._log_begins = self.log.stat().st_size if self.log.exists() else 0
        self._pid = self._parent.spawn(self._argv, self._env, self.log, self._grace)

    def start(self) -> None:
        """Start the process, on the ports it had before, and wait until it is ready.

        Raises ComponentFailedError if it ends, or is not ready in time.
        """
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the process that was launched is ready. Raises ComponentFailedError as `start` does."""

        def ready() -> bool:
            code = self._parent.exit_code(self.pid)
            if code is None:
                return self._ready(self.pid)
            if not self._again_if or self._again_if not in self._said():
                raise ComponentFailedError(f"{self.name} ended with {code}:\n{self.log_tail()}")
            self.launch()
            return False

        try:
            wait_for(ready, self._ready_timeout, f"{self.name} is ready")
        except TimeoutError as error:
            raise ComponentFailedError(f"{error}:\n{self.log_tail()}") from error

    def stop(self) -> None:
        """End the process by SIGTERM and wait; by SIGKILL if it does not obey in half a minute."""
        if not self._signal(signal.SIGTERM):
            return
        self._signal(signal.SIGCONT)
        try:
            self._wait_ended()
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash would, and wait until it is gone."""
        if self._signal(signal.SIGKILL):
            self._wait_ended()

    def freeze(self) -> None:
        """Stop the process where it stands (SIGSTOP): its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def log_tail(self) -> str:
        """The last lines of the log of all its runs."""
        if not self.log.exists():
            return f"({self.log} is not there)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def _said(self) -> str:
        """The log of this run."""
        return self.log.read_bytes()[self._log_begins :].decode(errors="replace") if self.log.exists() else ""

    def _signal(self, number: signal.Signals) -> bool:
        return self._pid is not None and self._parent.signal(self._pid, number)

    def _wait_ended(self) -> None:
        wait_for(lambda: not self.running, _STOP_TIMEOUT_SECONDS, f"{self.name} has ended", interval=0.02)
