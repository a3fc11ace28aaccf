"""When a participant takes over as coordinator: a pure function of what it sees.

A claim is a write with the resourceVersion that was seen last, so that of several one succeeds, and none does
after a write of the coordinator. So this need not be right: a wrong claim costs a request. A coordinator that
no participant waits for need not prove that it lives.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.peers.settled import FORMING_RENEW, RUNNING_RENEW

MISSED_RENEWALS = 3
"""How many renewals the coordinator may miss while a participant waits for it."""
ORDER_SECONDS = 0.15
"""The time between two participants in the order in which they claim: then mostly the first claims alone."""
MOST_IN_ORDER = 12
PROBE_AFTER_SECONDS = 1.0
"""How long a participant waits for an answer before it tries the coordinator's port."""
PROBERS = 3
"""How many of the order try it: each try is a request and a connection."""
NEVER = float("inf")


@dataclass(frozen=True)
class Standing:
    """What one participant sees of the coordinator. Times are its own monotonic seconds (P6)."""

    changed: float
    """When the round Lease last changed."""
    held: bool
    """Whether it names a coordinator."""
    mine: bool = False
    """Whether that is an earlier pod of this participant's name."""
    over: bool = False
    """Whether the run is closed."""
    active: bool = False
    member: bool = False
    """Whether this participant is a member of the last round."""
    place: int = 0
    """Its place in the order in which participants claim, from 0."""
    accused: float | None = None
    """Since when its own monitor says that the coordinator's agent is lost."""
    waits: float | None = None
    """Since when it waits for something that only a coordinator does."""
    ended: bool = False
    """Whether the coordinator's pod is known to have ended."""
    refuses: bool = False
    """Whether the coordinator's port refuses connections."""


@dataclass(frozen=True)
class Claim:
    """Take over at this moment, for this reason. NEVER: not before something changes."""

    at: float
    why: str


def next_claim(s: Standing) -> Claim:
    """When to take over, as far as nothing changes until then."""
    if s.over:
        return Claim(NEVER, "")
    order = min(s.place, MOST_IN_ORDER) * ORDER_SECONDS
    if not s.held:
        return Claim(s.changed + order, "it has left")
    if s.mine:
        return Claim(s.changed, "it was an earlier pod of this name")
    if s.ended:
        return Claim(s.changed, "its pod has ended")
    claims = [Claim(NEVER, "")]
    if s.accused is not None and s.accused > s.changed:  # one that has written since then lives
        claims.append(Claim(s.accused + order, "this agent cannot reach it any more"))
    if s.waits is not None:
        since = max(s.changed, s.waits)
        if s.refuses:
            claims.append(Claim(since + PROBE_AFTER_SECONDS + order, "its port refuses connections"))
        claims.append(Claim(since + patience(s) + order, "it does not answer"))
    return min(claims, key=lambda claim: claim.at)


def patience(s: Standing) -> float:
    """How long one that waits sees no change before it takes over. A standby of a running round hears of the
    coordinator less often than the others."""
    return MISSED_RENEWALS * _renewal(s)


def next_probe(s: Standing) -> float:
    """When to try the coordinator's port: soon if it has not written since this participant waits, otherwise
    when a renewal is overdue. Only the first few in the order try."""
    if s.over or not s.held or s.waits is None or s.refuses or s.place >= PROBERS:
        return NEVER
    answers = s.changed > s.waits
    return max(s.changed, s.waits) + PROBE_AFTER_SECONDS + (_renewal(s) if answers else 0.0)


def probe_pause(tries: int) -> float:
    """The seconds between a try and the next after this number of tries, while the round Lease does not
    change."""
    return PROBE_AFTER_SECONDS * float(2**tries)


def _renewal(s: Standing) -> float:
    return float(RUNNING_RENEW if s.active and not s.member else FORMING_RENEW)
