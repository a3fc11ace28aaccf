"""The round Lease as a participant has seen it, and the next thing to do about it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticjob.peers.settled import Settled


@dataclass(frozen=True)
class Identity:
    """A participant: its pod's name and UID."""

    pod: str
    uid: str

    def __str__(self) -> str:
        return f"{self.pod}_{self.uid}"

    @staticmethod
    def parse(holder: str) -> Identity:
        """Of a Lease's ``holderIdentity``. No pod's name has an underscore."""
        pod, _, uid = holder.partition("_")
        return Identity(pod, uid)


@dataclass(frozen=True)
class RoundLease:
    """``holder`` is the coordinator's identity, "" if it has left; ``record`` and ``state`` are the
    annotations."""

    version: str
    holder: str
    record: str
    state: str
    transitions: int = 0
    """How often the coordinator has changed, for people."""
    created: str = ""
    """When it was made, by the API server's clock."""

    def older_than(self, other: RoundLease) -> bool:
        """Whether it was seen late: answers and watches bring the same object. Versions are numbers of
        etcd's."""
        numbers = self.version.isdigit() and other.version.isdigit()
        return numbers and int(self.version) < int(other.version)


@dataclass(frozen=True)
class Write:
    """Write this into the round Lease. ``version`` is the one that it was decided on, a precondition (P1); ""
    means that the Lease is made, which fails if there is one."""

    settled: Settled
    waiting: str = ""
    version: str = ""
    claim: str = ""
    """Why this participant takes over; "": it coordinates already."""
    release: bool = False
    """It coordinates no longer."""
    transitions: int = 0

    @property
    def precondition(self) -> str:
        """The resourceVersion in a PATCH: if the Lease has changed since, the API server refuses it (P1)."""
        return self.version


@dataclass(frozen=True)
class Read:
    """Read the round Lease: it has changed, or may be gone."""


@dataclass(frozen=True)
class ListAgain:
    """List the participants' Leases again before one is judged by what was not heard: the watch may hang."""


@dataclass(frozen=True)
class TryPort:
    """Find out whether the port of the agent in this pod refuses connections."""

    pod: str


@dataclass(frozen=True)
class Rest:
    """Nothing to do for these seconds, unless something happens. ``probes``: endpoints to try meanwhile, by
    pod's UID."""

    seconds: float
    probes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """There will be nothing more to do."""


Step = Write | Read | ListAgain | TryPort | Rest | Done
