"""What the benchmark needs to know of a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.rivals.training import Training


@dataclass(frozen=True)
class Launch:
    """How an agent is started: what a pod's container would run."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Session(Protocol):
    """One job of a system. Pods have numbers: 0 to n-1, and n for the one that is added."""

    host: int
    """The pod on the node of the store, master, lighthouse or operator."""

    def launch(self, pod: int) -> Launch:
        """How the agent of this pod is started, for the first time or again; what else the world does then,
        such as creating a Pod object, is done here."""

    def ended(self, pod: int, code: int) -> None:
        """The agent of this pod has ended with this exit code, negative if a signal has killed it."""

    def resize(self, pods: int) -> None:
        """The user wants this many pods from now on; called before one is started or removed."""

    def removing(self, pod: int) -> None:
        """This pod is about to get SIGTERM."""

    def kill_coordinator(self) -> None:
        """SIGKILL to store, master, lighthouse or operator, if it is a process of its own."""

    def start_coordinator(self) -> None:
        """Start it again."""


class System(Protocol):
    """A way to train, with the flags that are fairest to it."""

    name: str
    version: str
    flags: str
    """What differs from its defaults, and why."""

    def prepare(self) -> None:
        """Make its environment. Raises UnavailableError."""

    def session(self, training: Training, pods: int, minimum: int) -> AbstractContextManager[Session]:
        """A job of this many pods, for which one more may be added."""


class Alone:
    """What most systems have in common: their coordinator is in a pod, and the world tells them nothing."""

    host = 0

    def ended(self, pod: int, code: int) -> None:
        """The system notices it by itself."""

    def resize(self, pods: int) -> None:
        """The number of pods is that of the agents."""

    def removing(self, pod: int) -> None:
        """Only the agent gets a signal."""

    def kill_coordinator(self) -> None:
        """It has died with its pod."""

    def start_coordinator(self) -> None:
        """It comes with its pod."""
