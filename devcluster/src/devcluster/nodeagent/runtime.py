"""The container runtime: a small process of its own that forks, watches and ends the containers' processes.

It is apart from the agent for three reasons. Forking a small single-threaded process takes a millisecond and
is safe, which neither is true of the agent. It outlives an agent that is killed with SIGKILL, sees the end of
its socket and then kills every container and removes what was left behind. And every container's main process
asks the kernel to be killed with its parent, so that even the loss of the runtime leaves no process.

A container is a PID namespace with its own mounts and host name: its main process is PID 1 (signals it has no
handler for are ignored, as in a real container) and takes all others with it when it ends. Without root this
process first makes itself root of a user namespace, and containers run as that root.

Protocol: one JSON object per line on the inherited socket. Requests: ``spawn``, ``signal``, ``remember`` and
``forget`` (paths to remove at the end), ``echo`` (answered when all before it is done). Events: ``started``,
``failed``, ``exited``, ``echo``.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from devcluster import linux
from devcluster.nodeagent.mounts import Mount, Root

_START_LIMIT = 10.0
"""Seconds that a child may take from fork to exec."""

_END_LIMIT = 5.0
"""Seconds that the killed containers may take to disappear when the runtime ends."""


@dataclass(frozen=True)
class _Child:
    id: str
    pid: int
    namespace: str
    """Link text of its container's PID namespace. It is PID 1 there, or a hook or probe."""


@dataclass(frozen=True)
class _Spawn:
    """A request to start a process."""

    id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    output: str
    network: str | None = None
    """Path of a network namespace."""
    hostname: str = ""
    staging: str = ""
    mounts: list[dict[str, Any]] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    join: str | None = None
    """Id of a container whose namespaces the process enters."""


def can_isolate() -> bool:
    """Whether this process may give a child PID, mount and UTS namespaces and a /proc of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() != 0:
                linux.enter_user_namespace()
            linux.unshare(linux.CLONE_NEWPID | linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
            inner = os.fork()
            if inner == 0:
                linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
                linux.mount("proc", "/proc", "proc", 0)
                os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


class Server:
    """Serves one agent until it closes its end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: dict[int, _Child] = {}
        self._remembered: set[str] = set()

    def serve(self) -> None:
        """Work until the agent is gone, then leave nothing behind."""
        wake_read, wake_write = socket.socketpair()
        wake_write.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            pending = b""
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if wake_read in ready:
                    wake_read.recv(4096)
                    self._reap()
                if self._connection in ready:
                    try:
                        data = self._connection.recv(1 << 20)
                    except ConnectionResetError:
                        break  # an agent that ends with events unread: unix(7)
                    if not data:
                        break
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._handle(json.loads(line))
        self._end()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            # The agent is gone: the next read says so.
            return

    def _handle(self, request: dict[str, Any]) -> None:
        kind = request.pop("op")
        if kind == "spawn":
            self._spawn(_Spawn(**request))
        elif kind == "signal":
            self._signal(request["id"], request["signal"], request["scope"])
        elif kind == "echo":
            self._send({"event": "echo", "id": request["id"]})
        elif kind == "remember":
            self._remembered.add(request["path"])
        elif kind == "forget":
            self._remembered.discard(request["path"])
        else:
            raise ValueError(f"unknown request {kind!r}")

    def _spawn(self, request: _Spawn) -> None:
        failure_read, failure_write = os.pipe2(os.O_CLOEXEC)
        joined = self._find(request.join) if request.join else None
        if request.join and joined is None:
            self._send(
                {"event": "failed", "id": request.id, "stage": "create", "message": "container has ended"}
            )
            return
        try:
            pid = _fork(joined.pid if joined else None)
        except OSError as error:
            self._send({"event": "failed", "id": request.id, "stage": "create", "message": str(error)})
            os.close(failure_read)
            os.close(failure_write)
            return
        if pid == 0:
            _become(request, failure_write, joined.pid if joined else None)
        os.close(failure_write)
        failure = _read_failure(failure_read, pid)
        if failure is not None:
            os.waitpid(pid, 0)
            self._send({"event": "failed", "id": request.id, **failure})
            return
        namespace = joined.namespace if joined else os.readlink(f"/proc/{pid}/ns/pid")
        self._children[pid] = _Child(request.id, pid, namespace)
        self._send({"event": "started", "id": request.id, "pid": pid, "namespace": namespace})

    def _find(self, container: str | None) -> _Child | None:
        return next((child for child in self._children.values() if child.id == container), None)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is None:
                continue  # an orphan that came to us as subreaper
            code = os.waitstatus_to_exitcode(status)
            self._send({"event": "exited", "id": child.id, "code": code if code >= 0 else 128 - code})

    def _signal(self, container: str, number: int, scope: str) -> None:
        """``scope``: "main" process, its process "group", or "all" processes of the container."""
        child = self._find(container)
        if child is None:
            return
        try:
            if scope == "group":
                os.killpg(child.pid, number)
            elif scope == "all":
                _signal_all(child, number)
            else:
                os.kill(child.pid, number)
        except ProcessLookupError:
            return

    def _end(self) -> None:
        for child in self._children.values():
            _signal_all(child, signal.SIGKILL)
        deadline = time.monotonic() + _END_LIMIT
        while self._children and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        for path in self._remembered:
            if os.path.islink(path):
                os.unlink(path)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _fork(joined: int | None) -> int:
    """Fork into a new PID namespace, or into that of the process ``joined``: as os.fork().

    A helper makes the child and ends at once: only root may undo where a process sends its children. The
    child waits until the helper is gone; from then on its parent is the runtime, which is a subreaper.
    """
    told, tell = os.pipe2(os.O_CLOEXEC)
    go, let_go = os.pipe2(os.O_CLOEXEC)
    helper = os.fork()
    if helper == 0:
        try:
            if joined is None:
                linux.unshare(linux.CLONE_NEWPID)
            else:
                _enter(joined, "pid", linux.CLONE_NEWPID)
            if (child := os.fork()) != 0:
                os.write(tell, str(child).encode())
                os._exit(0)
        except OSError as error:
            os.write(tell, str(error).encode())
            os._exit(1)
        os.close(let_go)
        if not os.read(go, 1):
            os._exit(128)  # the runtime is gone
        return 0
    text = os.read(told, 1 << 10).decode()
    os.waitpid(helper, 0)
    os.write(let_go, b"1")
    for end in (told, tell, go, let_go):
        os.close(end)
    if not text.isdigit():
        raise OSError(f"no process of its own: {text}")
    return int(text)


def _enter(pid: int, kind: str, flag: int) -> None:
    if os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}"):
        return  # such as the host's network, which only root may enter
    namespace = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    try:
        linux.setns(namespace, flag)
    finally:
        os.close(namespace)


def _become(request: _Spawn, failure: int, joined: int | None) -> NoReturn:
    """In the forked child: make the surroundings and exec. A failure is written to the pipe as JSON."""
    try:
        try:
            _surround(request, joined)
        except OSError as error:
            _fail(failure, "create", str(error))
        try:
            os.execvpe(request.argv[0], request.argv, request.env)
        except (OSError, ValueError) as error:
            _fail(failure, "start", f"exec {request.argv[0]!r}: {error}")
    finally:
        os._exit(128)


def _surround(request: _Spawn, joined: int | None) -> None:
    os.setsid()
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if joined is not None:
        for kind, flag in (
            ("net", linux.CLONE_NEWNET),
            ("uts", linux.CLONE_NEWUTS),
            ("mnt", linux.CLONE_NEWNS),
        ):
            _enter(joined, kind, flag)
    else:
        if request.network is not None:
            network = os.open(request.network, os.O_RDONLY)
            linux.setns(network, linux.CLONE_NEWNET)
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
        linux.sethostname(request.hostname)
        Root(request.staging).assemble([Mount(**mount) for mount in request.mounts], request.directories)
    os.chdir(request.cwd)


def _fail(pipe: int, stage: str, message: str) -> NoReturn:
    os.write(pipe, json.dumps({"stage": stage, "message": message}).encode())
    os._exit(128)


def _read_failure(pipe: int, pid: int) -> dict[str, str] | None:
    """What the child wrote before exec closed its end of the pipe; None if exec succeeded."""
    with selectors.DefaultSelector() as selector, os.fdopen(pipe, "rb") as stream:
        selector.register(stream, selectors.EVENT_READ)
        if not selector.select(_START_LIMIT):
            os.kill(pid, signal.SIGKILL)
            return {"stage": "create", "message": f"not started within {_START_LIMIT:.0f} s"}
        text = stream.read()
    return json.loads(text) if text else None


def members(namespace: str) -> list[int]:
    """Host PIDs of all processes of a container, in no order."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            belongs = os.readlink(f"/proc/{name}/ns/pid") == namespace
        except OSError:
            continue  # ended meanwhile, or not ours
        if belongs:
            found.append(int(name))
    return found


def is_stopped(pid: int) -> bool:
    """Whether no thread of the process can run: stopped, or ended."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat", "rb") as stream:
                # The state follows the command's name, which may itself hold parentheses and blanks.
                if stream.read().rpartition(b")")[2].split()[0] not in (b"T", b"t", b"Z", b"X"):
                    return False
    except OSError:
        return True
    return True


def _signal_all(child: _Child, number: int) -> None:
    """Signal every process of the container, also those that it forks meanwhile."""
    done: set[int] = set()
    for _ in range(10):
        fresh = [pid for pid in members(child.namespace) if pid not in done]
        if not fresh:
            return
        for pid in fresh:
            done.add(pid)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def main() -> None:
    """``python -m devcluster.nodeagent.runtime FD``: serve the agent at the other end of FD."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    # A terminal's Ctrl-C is for the agent, which then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    if os.geteuid() != 0:
        linux.enter_user_namespace()
    Server(connection).serve()


if __name__ == "__main__":
    main()
