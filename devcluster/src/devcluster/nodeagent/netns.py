"""Networks for pods: each has a network namespace, joined by routers that can lose packets on purpose.

    pod -- eth0/pN -- node's router -- uplink/nI -- core router (10.96.0.1, where the API server is relayed)

Everything lives in namespaces that only this process and the pods' processes hold: when they end, however
they end, the kernel removes all of it. Nothing is made in the host's network, which therefore can't reach the
pods; the agent does (for probes) with sockets made in the core.

A direction is cut where packets are forwarded, so no end is told: no carrier is lost, no RST or ICMP error is
sent. Towards a pod or node: its route becomes a blackhole. From it: the router stops forwarding what arrives
on that interface. From one pod to another: a rule of the sender's router. Routes, rules and sysctls are in
every kernel; packet filters are not.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Literal

from devcluster import linux
from devcluster.nodeagent.network import AddressPool, PodNetwork

Direction = Literal["both", "in", "out"]

_API_ADDRESS = "10.96.0.1"
"""The API server's certificate names it."""
_FIRST_NODE, _LAST_NODE = 101, 250
"""Second byte of a node's network 10.N.0.0/16."""
_COMMAND_SECONDS = 20.0
_CHUNK = 1 << 16


class NetworkError(Exception):
    """The kernel or ``ip`` refused something."""


class _Namespace:
    """A new network namespace; it lives while its file, or a process in it, is there."""

    def __init__(self) -> None:
        self._fd = linux.new_network()

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have the calling thread in it, for something that does not wait."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        linux.setns(self._fd, linux.CLONE_NEWNET)
        try:
            yield
        finally:
            linux.setns(own, linux.CLONE_NEWNET)
            os.close(own)

    async def run(self, commands: Sequence[str], sysctls: dict[str, int] | None = None) -> None:
        """Give ``commands`` to ip(8), after setting ``sysctls`` (names below net.ipv4, with slashes)."""
        writes = [f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in (sysctls or {}).items()]
        script = " && ".join([*writes, "exec ip -batch -"])
        process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net={self.path}", "sh", "-c", script),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        text = "\n".join([*commands, ""]).encode()
        try:
            _, errors = await asyncio.wait_for(process.communicate(text), _COMMAND_SECONDS)
        except asyncio.TimeoutError as error:
            process.kill()
            raise NetworkError(f"ip took longer than {_COMMAND_SECONDS:g} s") from error
        if process.returncode:
            raise NetworkError(f"{script}: {'; '.join(commands)}: {errors.decode().strip()}")

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class _Router:
    """A node's part of the network."""

    namespace: _Namespace
    number: int
    relay: asyncio.Server
    addresses: AddressPool

    @property
    def prefix(self) -> str:
        return f"10.{self.number}.0.0/16"

    @property
    def address(self) -> str:
        return f"10.{self.number}.0.1"

    @property
    def uplink(self) -> str:
        return f"n{self.number}"


@dataclass
class _Pod:
    router: _Router
    namespace: _Namespace
    address: str
    interface: str


class Fabric:
    """The networks of all pods of an agent that have one."""

    def __init__(self, available: bool) -> None:
        """``available``: this process may make networks."""
        self._available = available
        self._core: _Namespace | None = None
        self._routers: dict[str, _Router] = {}
        self._pods: dict[str, _Pod] = {}
        self._interfaces = 0
        self._building = asyncio.Lock()

    async def attach(self, node: str, uid: str, api: tuple[str, int]) -> PodNetwork:
        """Give the pod ``uid`` a network on ``node``. ``api``: where the node reaches the API server.

        :raises NetworkError: the kernel or ``ip`` refused it
        """
        if not self._available:
            raise NetworkError("a network of its own for a pod needs root")
        try:
            async with self._building:
                router = await self._router(node, api)
            namespace = _Namespace()
        except OSError as error:
            raise NetworkError(f"no network namespace for a pod: {error}") from error
        self._interfaces += 1
        pod = _Pod(router, namespace, router.addresses.take(), f"p{self._interfaces}")
        self._pods[uid] = pod
        try:
            await self._plug_in(pod)
        except NetworkError:
            self.detach(uid)
            raise
        port = router.relay.sockets[0].getsockname()[1]
        return PodNetwork(pod.address, (_API_ADDRESS, port), namespace.path, self._core_socket)

    async def _plug_in(self, pod: _Pod) -> None:
        """Connect a new pod with its node's router."""
        router = pod.router
        await pod.namespace.run(
            [
                "link set lo up",
                f"link add eth0 type veth peer name {pod.interface} netns {router.namespace.path}",
                f"addr add {pod.address}/32 dev eth0",
                "link set eth0 up",
                f"route add default via {router.address} dev eth0 onlink",
            ]
        )
        await router.namespace.run(
            [f"link set {pod.interface} up", f"route add {pod.address}/32 dev {pod.interface}"]
        )

    def detach(self, uid: str) -> None:
        """Forget a pod's network; it disappears with the pod's last process."""
        if (pod := self._pods.pop(uid, None)) is not None:
            pod.namespace.close()
            pod.router.addresses.give_back(pod.address)

    def remove_node(self, node: str) -> None:
        """Forget a node's router."""
        if (router := self._routers.pop(node, None)) is not None:
            router.relay.close()
            router.namespace.close()

    async def cut_pod(self, uid: str, direction: Direction) -> None:
        """Lose the packets to ("in") or from ("out") a pod. Raises KeyError if it has no network."""
        pod = self._pods[uid]
        closed = direction in ("both", "out")
        await pod.router.namespace.run(
            [f"route replace blackhole {pod.address}/32"] if direction in ("both", "in") else [],
            {f"conf/{pod.interface}/forwarding": 0} if closed else None,
        )

    async def restore_pod(self, uid: str) -> None:
        """Undo :meth:`cut_pod`."""
        pod = self._pods[uid]
        await pod.router.namespace.run(
            [f"route replace {pod.address}/32 dev {pod.interface}"],
            {f"conf/{pod.interface}/forwarding": 1},
        )

    async def cut_path(self, uid: str, peer: str) -> None:
        """Lose the packets from a pod to another. Raises KeyError if one of them has no network."""
        await self._rule("add", uid, peer)

    async def restore_path(self, uid: str, peer: str) -> None:
        """Undo :meth:`cut_path`. Raises KeyError if one of them has no network."""
        await self._rule("del", uid, peer)

    async def _rule(self, what: str, uid: str, peer: str) -> None:
        pod, other = self._pods[uid], self._pods[peer]
        command = f"rule {what} from {pod.address}/32 to {other.address}/32 blackhole"
        await pod.router.namespace.run([command])

    async def cut_node(self, node: str) -> None:
        """Lose all packets between the pods of ``node`` and others."""
        if self._core is not None and (router := self._routers.get(node)) is not None:
            commands = [f"route replace blackhole {router.prefix}"]
            await self._core.run(commands, {f"conf/{router.uplink}/forwarding": 0})

    async def restore_node(self, node: str) -> None:
        """Undo :meth:`cut_node`."""
        if self._core is not None and (router := self._routers.get(node)) is not None:
            await self._core.run([_route(router)], {f"conf/{router.uplink}/forwarding": 1})

    def close(self) -> None:
        """Forget everything."""
        for uid in list(self._pods):
            self.detach(uid)
        for node in list(self._routers):
            self.remove_node(node)
        if self._core is not None:
            self._core.close()

    async def _router(self, node: str, api: tuple[str, int]) -> _Router:
        if node in self._routers:
            return self._routers[node]
        if self._core is None:
            self._core = _Namespace()
            commands = ["link set lo up", f"addr add {_API_ADDRESS}/32 dev lo"]
            await self._core.run(commands, {"ip_forward": 1})
        taken = {router.number for router in self._routers.values()}
        number = next((n for n in range(_FIRST_NODE, _LAST_NODE + 1) if n not in taken), None)
        if number is None:
            raise NetworkError(f"only {len(taken)} nodes can have pods with networks of their own")
        listener = self._core_socket()
        listener.bind((_API_ADDRESS, 0))
        relay = await asyncio.start_server(_relay_to(api), sock=listener)
        router = _Router(_Namespace(), number, relay, AddressPool(IPv4Network(f"10.{number}.0.0/16")))
        self._routers[node] = router
        router.addresses.take()  # its own
        try:
            await self._join(router, self._core)
        except NetworkError:
            self.remove_node(node)
            raise
        return router

    async def _join(self, router: _Router, core: _Namespace) -> None:
        """Connect a new router with the core."""
        await router.namespace.run(
            [
                "link set lo up",
                f"link add uplink type veth peer name {router.uplink} netns {core.path}",
                f"addr add {router.address}/32 dev uplink",
                "link set uplink up",
                f"route add default via {_API_ADDRESS} dev uplink onlink",
            ],
            {"ip_forward": 1},
        )
        await core.run([f"link set {router.uplink} up", _route(router)])

    def _core_socket(self) -> socket.socket:
        if self._core is None:
            raise OSError("no pod has a network of its own")
        with self._core.entered():
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def _route(router: _Router) -> str:
    return f"route replace {router.prefix} via {router.address} dev {router.uplink} onlink"


def _relay_to(
    target: tuple[str, int],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A handler that passes connections from the core on to ``target`` in the host's network."""

    async def relay(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            try:
                server, to_server = await asyncio.open_connection(*target)
                try:
                    await asyncio.gather(_pump(client, to_server), _pump(server, to_client))
                finally:
                    to_server.close()
            finally:
                to_client.close()

    return relay


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        sink.write(chunk)
        await sink.drain()
    sink.write_eof()
