"""A process that has imported torch and has one thread, and the processes that are forked from it.

Importing torch takes two seconds of CPU; a fork takes milliseconds and shares the memory. The benchmarks'
participants begin in this way, and the agents of the conformance tests. Two facts decide how it is made:

* One thread: a fork is safe because no other thread exists that could hold a lock. It is counted.
* No frame without a file: c10d walks its own stack at every step (``inspect.stack()`` in torch's
  ``get_method_name``), and a frame that belongs to no file, such as runpy's or multiprocessing's, makes it
  search all loaded modules each time. The ``torchrun`` command has no such frame. So this is run as a file,
  not as a module nor by multiprocessing.

Requests are pickled, one per packet, answers are text:

    ("fork", body, arguments, environment, path of the log) and a descriptor  -> process id
    ("poll", process id)                               -> exit code (negative: a signal), or "runs"
    ("wait", process id)                               -> exit code, when it has ended

A process leads a session of its own. SIGUSR1 lets it write the stacks of its threads into its log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",
    "RES_OPTIONS": "attempts:0",
}
"""For processes that import torch: no threads at import, no C++ warnings, no interface lookups, no DNS.

DNS: a TCPStore asks for the name of each peer, on its server's only thread, and is silent for 5 s when the
name server drops a query (pytorch#159007). The figures would be those of the machine's name server: with one
that answers 50 queries a second, both backends take 5 to 180 s from N = 16 on. Without attempts the lookup
fails at once, after which torch asks no more; addresses and /etc/hosts work as ever.
"""

_PACKET_BYTES = 65536
_END_SECONDS = 30
_RUNS = "runs"


class Zygote:
    """A handle on it. A context manager; what was forked and still runs is killed at the end."""

    def __init__(self, modules: Sequence[str]) -> None:
        """``modules`` are imported before the first fork."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env={**os.environ, **QUIET},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._answer()  # the modules are imported

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(_END_SECONDS)

    def fork(
        self,
        body: Callable[..., None],
        arguments: tuple[Any, ...],
        environment: Mapping[str, str],
        log: Path,
        connection: Connection,
    ) -> int:
        """Start a process that calls ``body(connection, *arguments)``; returns its id."""
        request = pickle.dumps(("fork", body, arguments, dict(environment), str(log)))
        socket.send_fds(self._socket, [request], [connection.fileno()])
        return int(self._answer())

    def poll(self, pid: int) -> int | None:
        """The process's exit code, once; None while it runs."""
        answer = self._ask("poll", pid)
        return None if answer == _RUNS else int(answer)

    def wait(self, pid: int) -> int:
        """Wait for a process's end. Until then its process id is not used again."""
        return int(self._ask("wait", pid))

    def _ask(self, what: str, pid: int) -> str:
        self._socket.send(pickle.dumps((what, pid)))
        return self._answer()

    def _answer(self) -> str:
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the process that others are forked from has ended")
        return answer.decode()


def main(control_fd: int, modules: Sequence[str]) -> None:
    """Serve requests until the other side is gone, then kill what it has left behind."""
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    for module in modules:
        importlib.import_module(module)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"importing {', '.join(modules)} has left {threads} threads: a fork is not safe"
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared
    running: set[int] = set()
    with socket.socket(fileno=control_fd) as control:
        control.send(b"ready")
        while True:
            packet, descriptors, _, _ = socket.recv_fds(control, _PACKET_BYTES, 1)
            if not packet:
                break
            what, *rest = pickle.loads(packet)
            if what != "fork":
                (pid,) = rest
                control.send(_end(pid, running, 0 if what == "wait" else os.WNOHANG).encode())
                continue
            pid = os.fork()
            if pid == 0:
                control.close()
                _live(Connection(descriptors[0]), *rest)
            os.close(descriptors[0])
            running.add(pid)
            control.send(str(pid).encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _end(pid: int, running: set[int], options: int) -> str:
    found, status = os.waitpid(pid, options)
    if not found:
        return _RUNS
    running.discard(pid)
    return str(os.waitstatus_to_exitcode(status))


def _live(
    connection: Connection,
    body: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    log: str,
) -> NoReturn:
    """The life of a forked process: the body, and an exit code as Python would give it."""
    code = 1
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        os.environ.update(environment)
        body(connection, *arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the end of a process, as Python does it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
