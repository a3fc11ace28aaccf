"""The agent's side of the runtime: start a process, learn of its end, signal it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from devcluster.nodeagent.mounts import Mount
from devcluster.nodeagent.runtime import can_isolate, members

Scope = Literal["main", "group", "all"]

_LINE_BYTES = 1 << 20
_ANSWER_LIMIT = 20.0
"""Seconds that the runtime may take to get to a request."""

_END_LIMIT = 60.0
"""Seconds that the runtime may take to end everything. Killed before that it leaves folders behind."""


_NO_NAMESPACES = """\
the node agent may not make the namespaces of containers. Run it as root, or allow user namespaces (sysctl \
kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, kernel.unprivileged_userns_clone=1 on Debian). \
Inside of a container it needs more: docker run --privileged"""


class CreateContainerError(Exception):
    """The container's surroundings (mounts, directories, namespaces) could not be made."""


class StartError(Exception):
    """The container's command could not be executed."""


@dataclass(frozen=True)
class ProcessSpec:
    """What to run and in which surroundings."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    output: str
    """File that stdout and stderr are appended to."""
    hostname: str = ""
    network: str | None = None
    """Path of the network namespace; None: the host's."""
    staging: str = ""
    mounts: list[Mount] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)


class Process:
    """A process that the runtime started; it may be gone already."""

    def __init__(self, runtime: Runtime, identity: str, pid: int, namespace: str) -> None:
        self._runtime = runtime
        self._namespace = namespace
        self.id = identity
        self.pid = pid
        """On the host."""
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolves to the exit code, 128 + n after signal n."""

    def signal(self, number: int, scope: Scope = "main") -> None:
        """Send a signal; nothing happens if the process has ended."""
        if not self.exit_code.done():
            self._runtime.send({"op": "signal", "id": self.id, "signal": int(number), "scope": scope})

    def members(self) -> list[int]:
        """Host PIDs of all processes of the container whose main process this is."""
        return members(self._namespace)


class Runtime:
    """The connection to the runtime process. Make it with :meth:`start`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_loss: Callable[[], None],
    ) -> None:
        self._process = process
        reader, self._writer = streams
        self._reading = asyncio.create_task(self._read(reader, on_loss))
        self._starting: dict[str, asyncio.Future[Process]] = {}
        self._running: dict[str, Process] = {}
        self._echoes: dict[str, asyncio.Future[None]] = {}

    @classmethod
    async def start(cls, on_loss: Callable[[], None]) -> Runtime:
        """Start the runtime process. ``on_loss`` is called should it end by itself.

        :raises RuntimeError: this process may make no namespaces
        """
        if not can_isolate():
            raise RuntimeError(_NO_NAMESPACES)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "devcluster.nodeagent.runtime", str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        streams = await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES)
        return cls(process, streams, on_loss)

    async def close(self) -> None:
        """End every container and the runtime."""
        self._reading.cancel()
        self._writer.close()
        deadline = asyncio.get_running_loop().time() + _END_LIMIT
        while self._process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                self._process.kill()
            await asyncio.sleep(0.005)

    def send(self, request: dict[str, Any]) -> None:
        """Queue one request."""
        self._writer.write(json.dumps(request).encode() + b"\n")

    def remember(self, path: str) -> None:
        """Have ``path`` removed at the end, however the agent ends."""
        self.send({"op": "remember", "path": path})

    def forget(self, path: str) -> None:
        """Take back :meth:`remember`."""
        self.send({"op": "forget", "path": path})

    async def settled(self) -> None:
        """Wait until everything sent so far has been carried out."""
        identity = secrets.token_hex(8)
        answer = self._echoes[identity] = asyncio.get_running_loop().create_future()
        self.send({"op": "echo", "id": identity})
        await asyncio.wait_for(answer, _ANSWER_LIMIT)

    async def spawn(self, spec: ProcessSpec) -> Process:
        """Start a container's main process.

        :raises CreateContainerError: its surroundings could not be made
        :raises StartError: its command could not be executed
        """
        identity = secrets.token_hex(32)
        return await self._start(identity, asdict(spec))

    async def exec(self, container: Process, argv: list[str], env: dict[str, str], cwd: str) -> Process:
        """Start one more process in a container, its output discarded. Raises like :meth:`spawn`."""
        spec = ProcessSpec(argv, env, cwd, os.devnull)
        return await self._start(secrets.token_hex(8), asdict(spec) | {"join": container.id})

    async def _start(self, identity: str, request: dict[str, Any]) -> Process:
        started: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._starting[identity] = started
        self.send({"op": "spawn", "id": identity, **request})
        return await started

    async def _read(self, reader: asyncio.StreamReader, on_loss: Callable[[], None]) -> None:
        while line := await reader.readline():
            self._on_event(json.loads(line))
        on_loss()

    def _on_event(self, message: dict[str, Any]) -> None:
        identity = message["id"]
        if message["event"] == "exited":
            self._running.pop(identity).exit_code.set_result(message["code"])
            return
        if message["event"] == "echo":
            self._echoes.pop(identity).set_result(None)
            return
        started = self._starting.pop(identity)
        if message["event"] == "started":
            process = self._running[identity] = Process(self, identity, message["pid"], message["namespace"])
            if started.cancelled():
                process.signal(signal.SIGKILL)
            else:
                started.set_result(process)
        elif started.cancelled():
            return
        elif message["stage"] == "create":
            started.set_exception(CreateContainerError(message["message"]))
        else:
            started.set_exception(StartError(message["message"]))
