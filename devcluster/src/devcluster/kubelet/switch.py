"""The network between the nodes, the API server and this machine: one switch, into which each has a cable.

    10.N.0.1 this machine       10.N.0.2 node-a, its pods 10.N.2.0/24       10.N.3 ...
         devclusterN                 eth0
              \\                       |                                      |
               +------ bridge in a namespace of its own, held by a process --+

This machine has an interface and routes of the cluster's, as long as the namespace is there: the kernel takes
them away with the process that holds it. Pods reach each other, the nodes and this machine, and nothing else:
it does not forward.

A cable is pulled out of the switch and not at the node's end: no carrier is lost and nothing is refused, as
when a machine elsewhere has died.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devcluster.claims import claim
from devcluster.component import Component

_NUMBERS = range(200, 250)
_FIRST_NODE = 2
_MOST_NODES = 200
_COMMAND_SECONDS = 20.0
_BRIDGE = "switch"


class Subnet:
    """Addresses that no other cluster of this machine has, until `release`: 10.N.0.0/16."""

    def __init__(self) -> None:
        """Raises RuntimeError if none is free."""
        routes = _routes()
        for number in _NUMBERS:
            network = ipaddress.IPv4Network(f"10.{number}.0.0/16")
            held = claim(f"subnet-{number}")
            if held is None:
                continue
            if not any(network.overlaps(route) for route in routes):
                self.number = number
                self._claim = held
                return
            held.close()
        raise RuntimeError(f"no free network between 10.{_NUMBERS[0]}.0.0/16 and 10.{_NUMBERS[-1]}.0.0/16")

    def release(self) -> None:
        """Let others have it."""
        self._claim.close()

    @property
    def cidr(self) -> str:
        """All of it."""
        return f"10.{self.number}.0.0/16"

    @property
    def host(self) -> str:
        """This machine's address."""
        return f"10.{self.number}.0.1"

    def node(self, index: int) -> str:
        """The address of a node, counted from 0."""
        return f"10.{self.number}.0.{_FIRST_NODE + index}"

    def pods(self, index: int) -> str:
        """The addresses of its pods."""
        if index >= _MOST_NODES:
            raise ValueError(f"at most {_MOST_NODES} nodes")
        return f"10.{self.number}.{_FIRST_NODE + index}.0/24"


class Switch:
    """The switch; `holder` is the process that holds its namespace, to be run by the cluster's supervisor."""

    HOLDER = ("unshare", "--net", "sleep", "infinity")

    def __init__(self, subnet: Subnet, holder: Component) -> None:
        self._subnet = subnet
        self._holder = holder

    def start(self) -> None:
        """Make it, with the cable to this machine."""
        self._holder.start()
        interface = f"devcluster{self._subnet.number}"
        _ip(
            [
                f"link add {interface} type veth peer name host netns {self._holder.pid}",
                f"addr add {self._subnet.host}/24 dev {interface}",
                f"link set {interface} up",
            ]
        )
        self._run([f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up", *_plug_in("host")])

    def connect(self, index: int, pid: int, nodes: int) -> None:
        """Connect the node whose first process is `pid`; it can then reach all nodes' pods."""
        subnet, cable = self._subnet, f"node{index}"
        self._run([f"link add {cable} type veth peer name eth0 netns {pid}", *_plug_in(cable)])
        others = [other for other in range(nodes) if other != index]
        _ip(
            [
                f"addr add {subnet.node(index)}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {subnet.host}",
                *(f"route add {subnet.pods(other)} via {subnet.node(other)}" for other in others),
            ],
            pid,
        )
        _ip([f"route replace {subnet.pods(index)} via {subnet.node(index)}"])

    def cut(self, index: int) -> None:
        """Pull a node's cable: what it sends and what it should get is lost."""
        self._run([f"link set node{index} nomaster"])

    def restore(self, index: int) -> None:
        """Undo `cut`."""
        self._run(_plug_in(f"node{index}"))

    def disconnect(self, index: int) -> None:
        """Remove the cable of a node that is off, for the next time that it is on.

        The kernel would only do it when the connections that the node had have timed out.
        """
        self._run([f"link delete node{index}"])

    def _run(self, commands: Sequence[str]) -> None:
        _ip(commands, self._holder.pid)


def has_own_network(pid: int) -> bool:
    """Whether a process is in another network namespace than this one."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except FileNotFoundError:
        return False


def _plug_in(cable: str) -> list[str]:
    return [f"link set {cable} master {_BRIDGE}", f"link set {cable} up"]


def _ip(commands: Sequence[str], pid: int | None = None) -> None:
    """Give commands to ip(8), in the network of the process `pid`. Raises RuntimeError if it refuses one."""
    # Only the network: /sys with its control groups has to stay.
    entered = [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]
    done = subprocess.run(
        [*entered, "ip", "-batch", "-"],
        input="\n".join([*commands, ""]),
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip: {'; '.join(commands)}: {done.stderr.strip()}")


def _routes() -> list[ipaddress.IPv4Network]:
    """Where this machine has routes to, but for the default one."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        network = ipaddress.IPv4Network(
            (int.from_bytes(bytes.fromhex(destination), "little"), _bits(mask)), strict=False
        )
        if network.prefixlen:
            found.append(network)
    return found


def _bits(mask: str) -> int:
    return int(mask, 16).bit_count()
