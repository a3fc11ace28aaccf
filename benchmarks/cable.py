"""A network namespace on the far end of a cable that can lose packets: how a participant falls silent.

    this machine 198.18.77.1 -- ejbench -- far 198.18.77.2, in a namespace of its own

The addresses are of the range for benchmarks (RFC 2544): they belong to no machine. Cut, each end sends to a
hardware address that is not there: no carrier is lost, and no sender gets an error. Needs root and
ip(8); all of it disappears with the last process that holds the namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from devcluster import linux

NEAR, FAR = "198.18.77.1", "198.18.77.2"
NAMESPACE_ENV = "BENCH_NETWORK_NAMESPACE"
"""The variable of a participant's environment with the path of the network namespace that it enters."""

_INTERFACE = "ejbench"
_NOBODY = "02:00:00:00:00:01"


def available() -> bool:
    """Whether namespaces can be made here."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("nsenter") is not None


class Cable:
    """The cable and the namespace at its far end. A context manager."""

    def __enter__(self) -> Cable:
        self._namespace = linux.new_network()
        self._near(
            f"link add {_INTERFACE} type veth peer name far netns {self.path}",
            f"addr add {NEAR}/30 dev {_INTERFACE}",
            f"link set {_INTERFACE} up",
        )
        self._far("link set lo up", f"addr add {FAR}/30 dev far", "link set far up")
        return self

    def __exit__(self, *_: object) -> None:
        self._near(f"link del {_INTERFACE}")
        os.close(self._namespace)

    @property
    def path(self) -> str:
        """The far namespace's, for `NAMESPACE_ENV`."""
        return f"/proc/{os.getpid()}/fd/{self._namespace}"

    def cut(self) -> None:
        """Lose everything from now on, both ways."""
        self._near(f"neigh replace {FAR} lladdr {_NOBODY} nud permanent dev {_INTERFACE}")
        self._far(f"neigh replace {NEAR} lladdr {_NOBODY} nud permanent dev far")

    def _near(self, *commands: str) -> None:
        _ip([], commands)

    def _far(self, *commands: str) -> None:
        _ip(["nsenter", f"--net={self.path}"], commands)


def enter(path: str) -> None:
    """Take the calling process, which has one thread, into a network namespace. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        linux.setns(descriptor, linux.CLONE_NEWNET)
    finally:
        os.close(descriptor)


def _ip(prefix: Sequence[str], commands: Sequence[str]) -> None:
    text = "\n".join([*commands, ""])
    done = subprocess.run([*prefix, "ip", "-batch", "-"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip: {'; '.join(commands)}: {done.stderr.strip()}")
