"""A port that is kept for a store which a worker is to serve."""

from __future__ import annotations

import socket
import sys


class HeldPort:
    """A port of this host that is kept for a store which a worker is to serve (torch 2.4 and 2.5).

    Bound and never listened on: the kernel does not give it out as a free port and accepts no connection, and
    only servers that set SO_REUSEADDR can bind it, as every TCPStore server does. So the seconds in which the
    worker starts are covered; elsewhere than on Linux, where the worker would be refused, too, the port is
    let go at once. A server with this very number that sets SO_REUSEADDR could still take it: global rank 0's
    worker then fails with EADDRINUSE, which ends the round like any worker's failure, and the next round has
    another port.
    """

    def __init__(self) -> None:
        try:
            self._socket = _bound(socket.AF_INET6, "::")
        except OSError:  # no IPv6 here
            self._socket = _bound(socket.AF_INET, "0.0.0.0")
        self.port: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self._socket.close()

    def close(self) -> None:
        """Hold it no longer."""
        self._socket.close()


def _bound(family: socket.AddressFamily, host: str) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind((host, 0))
    except OSError:
        one.close()
        raise
    return one
