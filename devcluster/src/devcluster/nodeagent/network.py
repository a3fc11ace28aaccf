"""Addresses of pods and nodes, unique on this machine however many agents run on it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from devcluster.claims import claim


@dataclass(frozen=True)
class PodNetwork:
    """Where a pod is, and how it reaches the API server."""

    address: str
    api: tuple[str, int]
    namespace: str | None = None
    """Path of its network namespace; None: it shares the host's."""
    make_socket: Callable[[], socket.socket] = lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    """A TCP socket from which the pod's address can be reached."""

    async def connect(self, port: int) -> socket.socket:
        """Connect to a port of the pod. Raises OSError."""
        connection = self.make_socket()
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (self.address, port))
        except BaseException:
            connection.close()
            raise
        return connection


class AddressPool:
    """Addresses out of a network; one that was given back is used again as late as possible."""

    def __init__(self, network: IPv4Network) -> None:
        self._network = network
        self._used: set[IPv4Address] = set()
        self._next = 1

    def take(self) -> str:
        """An address that is free. Raises RuntimeError if there is none."""
        size = self._network.num_addresses
        for _ in range(size):
            candidate = self._network.network_address + self._next
            self._next = 1 + self._next % (size - 2)
            if candidate not in self._used:
                self._used.add(candidate)
                return str(candidate)
        raise RuntimeError(f"all addresses of {self._network} are taken")

    def give_back(self, address: str) -> None:
        """The address may be taken again."""
        self._used.discard(IPv4Address(address))


class LoopbackRange:
    """127.X.0.0/16 for one agent: pods in its lower half, nodes in its upper half.

    X is claimed (`devcluster.claims`).
    """

    def __init__(self) -> None:
        for second in random.sample(range(64, 255), 191):
            held = claim(f"net-127.{second}")
            if held is None:
                continue
            self._claim = held
            self.pods = AddressPool(IPv4Network(f"127.{second}.0.0/17"))
            self.nodes = AddressPool(IPv4Network(f"127.{second}.128.0/17"))
            return
        raise RuntimeError("191 node agents run on this machine: no loopback range is left")

    def close(self) -> None:
        """Let others have the range."""
        self._claim.close()
