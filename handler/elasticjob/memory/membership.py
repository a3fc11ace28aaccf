"""A round as an agent's memory knows it, and its other members."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Members:
    """What an agent knows of the other members of its round."""

    token: str
    """Each connection between members begins with it."""
    address: str
    """At which members reach this agent."""
    partner: str = ""
    """The address to which its copies go; "" if they go to no other agent."""
    alone: str = ""
    """Why they go to no other; "" if they do, or if there is no other or the job wants no copies."""


@dataclass(frozen=True)
class Round:
    """A round of this agent. Two are the same if they have the same ``key``."""

    job: str
    number: int
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    """The agent's workers say it with each connection."""
    members: Members | None = None
    """None until the members have met."""


def same(one: str, other: str) -> bool:
    """Whether two keys or tokens are equal. Takes as long if they are not."""
    return secrets.compare_digest(one.encode(), other.encode())
