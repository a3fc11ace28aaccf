"""The process that participants are forked from: it has imported torch, and has one thread.

Run as a file, not as a module nor by multiprocessing: c10d walks its own stack at every step
(`inspect.stack()` in torch's `get_method_name`), and a frame that belongs to no file, such as runpy's or
multiprocessing's, makes it search all loaded modules each time. The `torchrun` command has no such frame.

Requests are pickled, one per packet, the answers are numbers:

    ("fork", Seat, path of the log) and a descriptor  -> process id
    ("reap", process id)                              -> the same
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path

PACKET_BYTES = 65536


def main(control_fd: int) -> None:
    """Serve requests until the other side is gone, then kill the participants that it has left behind."""
    sys.path[0] = str(Path(__file__).parent.parent)
    import torch.distributed.elastic.rendezvous.registry  # noqa: F401 - for the participants

    from benchmarks.participant import serve

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
            if request[0] == "reap":
                pid = request[1]
                os.waitpid(pid, 0)
                running.discard(pid)
            else:
                pid = os.fork()
                if pid == 0:
                    control.close()
                    serve(Connection(descriptors[0]), *request[1:])
                os.close(descriptors[0])
                running.add(pid)
            control.send(str(pid).encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
