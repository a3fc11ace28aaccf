"""Receiving into a file without a mapping, and with one copy by the kernel: splice(2)."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress

PIPE_BYTES = 1 << 20
"""The most that Linux gives a user without privileges (``/proc/sys/fs/pipe-max-size``)."""
NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)
"""What a sandbox says that has no splice, or none between these files."""


class Pipe:
    """Moves bytes from sockets into files. To receive into a mapping takes two to three times the processor
    time, because each of its pages has to be found again. A context manager: its end closes the pipe."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        with suppress(OSError):  # a user who has many pipes gets small ones
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._splices = True

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._out)
        os.close(self._in)

    def move(self, sock: socket.socket, descriptor: int, begin: int, size: int) -> int:
        """Receive at most ``size`` bytes and write them from ``begin`` on. Returns how many; 0 when the other
        side has ended. Raises OSError."""
        count = self._spliced(sock.fileno(), self._in, min(size, PIPE_BYTES))
        if count is None:
            return _write(sock.recv(min(size, PIPE_BYTES)), descriptor, begin)
        at, end = begin, begin + count
        while at < end:
            moved = self._spliced(self._out, descriptor, end - at, at)
            at += _write(os.read(self._out, end - at), descriptor, at) if moved is None else moved
        return count

    def _spliced(self, source: int, target: int, count: int, begin: int | None = None) -> int | None:
        """None: it cannot be done here."""
        if self._splices:
            try:
                return os.splice(source, target, count, offset_dst=begin)
            except OSError as error:
                if error.errno not in NO_SPLICE:
                    raise
                self._splices = False
        return None


def _write(content: bytes, descriptor: int, begin: int) -> int:
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], begin + written)
    return written
