"""What comes through a socket stands in the file, with splice and without."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import threading
from typing import Any
from unittest import mock

import pytest

from elasticjob.memory import splice, wire
from elasticjob.memory.shelf import make_buffer

CONTENT = random.Random(0).randbytes(3 * splice.PIPE_BYTES + 4097)


def received(content: bytes) -> bytes:
    """Send a piece through TCP; returns what is in the memfd then."""
    source, target = make_buffer(len(content)), make_buffer(len(content))
    os.pwrite(source, content, 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    with near, far:
        sending = threading.Thread(target=wire.send_piece, args=(far, source, len(content)))
        sending.start()
        wire.receive_piece(near, target, len(content))
        sending.join()
    try:
        return os.pread(target, len(content), 0)
    finally:
        os.close(source)
        os.close(target)


@pytest.mark.parametrize("size", [1, 4095, splice.PIPE_BYTES + 1, len(CONTENT)])
def test_what_was_sent_is_what_is_in_the_file(size: int) -> None:
    assert received(CONTENT[:size]) == CONTENT[:size]


@pytest.mark.parametrize("refused", ["socket", "file"])
def test_without_splice_it_is_read_and_written(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Also if that is known only when the first bytes are in the pipe."""
    spliced = os.splice
    asked = []

    def refusing(source: int, target: int, count: int, **offset: Any) -> int:
        asked.append(offset)
        if refused == "socket" or offset["offset_dst"] is not None:
            raise OSError(errno.EINVAL, "refused")
        return spliced(source, target, count, **offset)

    monkeypatch.setattr(os, "splice", refusing)
    assert received(CONTENT) == CONTENT
    assert len(asked) == (1 if refused == "socket" else 2), "once is enough"


def test_a_small_pipe_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "F_SETPIPE_SZ", -1)
    assert received(CONTENT) == CONTENT


def test_another_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "splice", mock.Mock(side_effect=ConnectionResetError()))
    with splice.Pipe() as pipe, socket.socket() as sock, pytest.raises(ConnectionResetError):
        pipe.move(sock, 0, 0, 1)
