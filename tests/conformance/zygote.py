"""The process that the agents of these tests are forked from: it has imported torch, and has one thread.

Importing torch takes two seconds of CPU; a fork takes milliseconds. Forking is safe here because no other
thread exists that could hold a lock. Run as a file. Requests are pickled, one per packet, answers are text:

    ("fork", body, arguments, environment, path of the log) and a descriptor  -> process id
    ("end", process id)                                -> exit code (negative: a signal), or "" while it runs

An exit code is given once. SIGUSR1 lets a process write the stacks of its threads into its log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

PACKET_BYTES = 65536


def main(control_fd: int) -> None:
    """Serve requests until the other side is gone, then kill what it has left behind."""
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    import torch.distributed.launcher.api
    import torch.distributed.run  # noqa: F401 - for those who are forked

    import elasticjob.create  # noqa: F401
    from tests.conformance import bodies, work  # noqa: F401

    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"importing torch has left {threads} threads: forking would not be safe"
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared
    running: set[int] = set()
    with socket.socket(fileno=control_fd) as control:
        control.send(b"0")
        while True:
            packet, descriptors, _, _ = socket.recv_fds(control, PACKET_BYTES, 1)
            if not packet:
                break
            request = pickle.loads(packet)
            if request[0] == "end":
                control.send(_end(request[1], running).encode())
                continue
            pid = os.fork()
            if pid == 0:
                control.close()
                _live(Connection(descriptors[0]), *request[1:])
            os.close(descriptors[0])
            running.add(pid)
            control.send(str(pid).encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _end(pid: int, running: set[int]) -> str:
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return ""
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
    main(int(sys.argv[1]))
