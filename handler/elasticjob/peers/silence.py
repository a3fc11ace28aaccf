"""What a coordinator makes of participants of which it hears nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.text import listed
from elasticjob.peers.sight import Peer, Sight
from elasticjob.rounds.state import MemberState, RoundView

MISSED_RENEWALS = 3
"""How many renewals of its Lease a member of a running round may miss until its port is tried."""
STANDSTILL_SECONDS = MISSED_RENEWALS * MEMBER_RENEW_SECONDS


def confirm(
    before: Mapping[str, float], unheard: Collection[str], sight: Sight, now: float
) -> tuple[bool, dict[str, float]]:
    """Whether the Leases have to be listed first; and names for which they were, with the time of the look
    after that (infinity: it is the next). It counts while one is judged, or does not change its Lease."""
    known = {
        name: min(at, now)
        for name, at in before.items()
        if name in unheard or (name in sight.peers and sight.peers[name].silent >= now - min(at, now))
    }
    new = {name: float("inf") for name in unheard if name not in known}
    return bool(new), {**known, **new}


def quiet_members(view: RoundView, sight: Sight) -> list[Peer]:
    """The members of a running round that have missed their renewals. That is no proof (P3), but a reason to
    try their ports: all may have ended at once, so that none is left to say it."""
    found = []
    for m in view.state.members:
        peer = sight.has(m.name, m.key)
        if peer is None or m.state != MemberState.MEMBER:
            continue
        limit = MISSED_RENEWALS * (LEADER_RENEW_SECONDS if m.group_rank == 0 else MEMBER_RENEW_SECONDS)
        if peer.silent >= limit:
            found.append(peer)
        else:
            view.waits.wake(limit - peer.silent)
    return found


def standstill(view: RoundView, quiet: list[Peer]) -> str:
    """What to say if no member of a running round is heard any more, "" otherwise."""
    there = [m for m in view.state.members if m.state == MemberState.MEMBER]
    if len(quiet) < len(there) or not there or min(p.silent for p in quiet) < STANDSTILL_SECONDS:
        return ""
    return (
        f"round {view.state.number} should run, but no member has renewed its Lease for "
        f"{STANDSTILL_SECONDS:.0f} s ({listed([p.name for p in quiet])}). If these pods have ended, delete "
        "them, or their Leases where there are no such pods; where pods may be watched, that is noticed "
        "without you"
    )
