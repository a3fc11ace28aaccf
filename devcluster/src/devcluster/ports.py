"""Ports of one cluster: free when taken, and taken by no other cluster of ours while the cluster lives.

A port found by binding port 0 is out of the range that the kernel hands to outgoing connections, so a
stranger can have it before the component binds it, or between a component's stop and its restart. Ports
are therefore taken below that range, and each is claimed (`devcluster.claims`).
"""

from __future__ import annotations

import random
import socket

import psutil

from devcluster.claims import claim

# Above the well-known ports and below ip_local_port_range's default of 32768.
FIRST, LAST = 20000, 32000


class PortClaims:
    """The ports that one cluster holds until `release`."""

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []

    def take(self, host: str = "127.0.0.1") -> int:
        """Claim a TCP port on which nothing listens.

        Raises RuntimeError if there is none.
        """
        for port in random.sample(range(FIRST, LAST), LAST - FIRST):
            held = claim(f"port-{port}")
            if held is None:
                continue
            if _is_free(host, port):
                self._claims.append(held)
                return port
            held.close()
        raise RuntimeError(f"no free TCP port between {FIRST} and {LAST} on {host}")

    def release(self) -> None:
        """Let others have the ports."""
        for held in self._claims:
            held.close()
        self._claims.clear()


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def listens(pid: int, port: int) -> bool:
    """Whether the process `pid` itself (and no stranger) listens on the TCP port `port`."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return False
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in connections
    )
