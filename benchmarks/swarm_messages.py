"""What the benchmark and the processes of its swarm say to each other; plain data, quick to import."""

from __future__ import annotations

from dataclasses import dataclass

SWARM_AGENT = "elasticjob-swarm"
"""The user agent of its participants."""


@dataclass(frozen=True)
class SwarmSeat:
    """The pod that a participant plays, and how it reaches the API server."""

    server: str
    ca_file: str
    namespace: str
    job: str
    pod: str
    uid: str
    token: str


@dataclass(frozen=True)
class Passed:
    """One participant's way through one call; times are monotonic seconds.

    `written`: its announcement is acknowledged. `seen`: it has seen the round that it is a member of.
    """

    called: float
    written: float
    seen: float
    returned: float
    rank: int
    world_size: int
    round: int
    leader: str


@dataclass(frozen=True)
class Call:
    """Call `next_rendezvous` at `at` (monotonic seconds); give up `timeout` seconds later."""

    at: float
    timeout: float


@dataclass(frozen=True)
class Usage:
    """What this part of the swarm has used so far: bytes on the wire to and from the API server, requests
    that were refused, CPU seconds."""

    sent: int
    received: int
    refused: int
    cpu_seconds: float
