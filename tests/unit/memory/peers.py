"""A member that does something wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elasticjob.memory import wire


@contextmanager
def member(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """One that takes the token and a request and then does this. Its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                while sock.recv(1) != b"\n":
                    pass
                try:
                    wire.receive(sock)
                    answer(sock)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
