"""Messages and pieces on sockets: between a worker and its agent (Unix) and between agents (TCP).

A message is JSON behind its length; with it may come descriptors, or the bytes of a piece. Sockets block, and
the kernel limits how long: with a time limit of Python's, ``sendfile`` fails with EAGAIN.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob.memory.splice import Pipe

Message = dict[str, Any]

LENGTH = struct.Struct("!I")
CRC32 = struct.Struct("!I")
MOST_BYTES = 4 << 20
"""A longer message is not one of ours."""
CHUNK = 8 << 20
"""How much is checked at a time, so that it is sent while it is in the processor's cache."""
SENT_AT_ONCE = 1 << 20
UNDER_WAY: Message = {"under way": True}
"""What an agent says, again and again, before an answer that takes long."""
STUCK_SECONDS = 30
"""A send or receive that makes no progress for this long has failed."""
SLOWEST = 1 << 20
"""Bytes per second: a piece that takes longer has failed, however often a few bytes of it come."""


def send(sock: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, and descriptors with it. Raises OSError."""
    content = json.dumps(message).encode()
    content = LENGTH.pack(len(content)) + content
    sent = 0
    if descriptors:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        sent = sock.sendmsg([content], [rights])
    sock.sendall(content[sent:])


def receive(sock: socket.socket) -> Message:
    """The next message. Raises ConnectionError if it does not come, ValueError if it is none."""
    return _parsed(sock, receive_exactly(sock, LENGTH.size))


def receive_answer(sock: socket.socket, size: int) -> Message:
    """The next message, after any number of those that say that it is under way, for as long as a piece of
    this size may take. Raises what ``receive`` raises, and TimeoutError."""
    ends = _end_of_piece(size)
    while (answer := receive(sock)) == UNDER_WAY:
        _check(ends)
    return answer


def receive_with_descriptors(sock: socket.socket) -> tuple[Message, list[int]]:
    """The next message, and the descriptors that have come with it, which are the caller's from now on."""
    found = array.array("i")
    head, ancillary, _, _ = sock.recvmsg(
        LENGTH.size, socket.CMSG_SPACE(4 * found.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    try:
        if not head:
            raise ConnectionError("the connection was closed")
        head += receive_exactly(sock, LENGTH.size - len(head))
        return _parsed(sock, head), list(found)
    except BaseException:
        close_all(found)
        raise


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """The next ``size`` bytes. Raises ConnectionError if the connection is closed before."""
    content = bytearray()
    while len(content) < size:
        part = sock.recv(size - len(content))
        if not part:
            raise ConnectionError("the connection was closed")
        content += part
    return bytes(content)


def _parsed(sock: socket.socket, head: bytes) -> Message:
    (length,) = LENGTH.unpack(head)
    if length > MOST_BYTES:
        raise ValueError(f"a message of {length:,} bytes, expected at most {MOST_BYTES:,}")
    try:
        message = json.loads(receive_exactly(sock, length))
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}, expected an object")
    return message


def close_all(descriptors: Sequence[int] | array.array[int]) -> None:
    """Close descriptors that are left."""
    for descriptor in descriptors:
        os.close(descriptor)


# -- pieces ------------------------------------------------------------------------------------------------


def send_piece(sock: socket.socket, descriptor: int, size: int) -> int:
    """Send the first ``size`` bytes of a memfd, then their CRC-32; returns that. Raises OSError."""
    crc, ends = 0, _end_of_piece(size)
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        for begin in range(0, size, CHUNK):
            end = min(begin + CHUNK, size)
            with view[begin:end] as part:
                crc = zlib.crc32(part, crc)
            while begin < end:
                _check(ends)
                sent = os.sendfile(sock.fileno(), descriptor, begin, min(end - begin, SENT_AT_ONCE))
                if not sent:
                    raise ConnectionError("a piece has become shorter while it was sent")
                begin += sent
    sock.sendall(CRC32.pack(crc))
    return crc


def receive_piece(sock: socket.socket, descriptor: int, size: int) -> int:
    """Receive a piece into a memfd of at least ``size`` bytes; returns the CRC-32 that its sender has
    computed. Raises ConnectionError if the connection is cut before its end: then it does not count."""
    received, ends = 0, _end_of_piece(size)
    with Pipe() as pipe:
        while received < size:
            _check(ends)
            count = pipe.move(sock, descriptor, received, size - received)
            if not count:
                raise ConnectionError(f"it was cut after {received:,} of {size:,} bytes")
            received += count
    (crc,) = CRC32.unpack(receive_exactly(sock, CRC32.size))
    return int(crc)


def _end_of_piece(size: int) -> float:
    return time.monotonic() + STUCK_SECONDS + size / SLOWEST


def _check(ends: float) -> None:
    if time.monotonic() > ends:
        raise TimeoutError("the other side is too slow")


def checksum(descriptor: int, size: int) -> int:
    """The CRC-32 of the first ``size`` bytes of a memfd."""
    crc = 0
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        for begin in range(0, size, CHUNK):
            with view[begin : begin + CHUNK] as part:
                crc = zlib.crc32(part, crc)
    return crc


# -- sockets -----------------------------------------------------------------------------------------------


def limit_waits(sock: socket.socket, seconds: int = STUCK_SECONDS) -> None:
    """Let the socket block, but let the kernel end what makes no progress for this long."""
    sock.settimeout(None)
    limit = struct.pack("ll", seconds, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def wait_long(sock: socket.socket) -> None:
    """Let the next message come whenever there is one; sends stay limited. A connection that is cut without a
    word is noticed by keep-alive."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def in_words(error: Exception, seconds: int = STUCK_SECONDS) -> str:
    """What an error says. ``seconds``: the limit of ``limit_waits``, at which the kernel says no more than
    that the resource is temporarily unavailable."""
    return f"there was no progress for {seconds} s" if isinstance(error, BlockingIOError) else str(error)
