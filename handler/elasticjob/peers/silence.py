"""What a coordinator makes of participants of which it hears nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.text import listed
from elasticjob.peers.round_lease import RoundLease
from elasticjob.peers.sight import Peer, Sight
from elasticjob.rounds.state import MemberState, RoundView

MISSED_RENEWALS = 3
"""How many renewals of its Lease a member of a running round may miss until its port is tried."""
STANDSTILL_SECONDS = MISSED_RENEWALS * MEMBER_RENEW_SECONDS
DEAF_SECONDS = 3.0
"""How long a watch may not bring what this coordinator has written until its Leases are listed again."""
CATCH_UP_SECONDS = 15.0
"""How long others may take to write what they could not: the longest pause of ``elasticjob.leases.writer`` is
12 s, also where the server asks for more."""


class Hearing:
    """Whether a coordinator hears enough to judge by what it does not hear (P4). It does not know whether the
    API server was away before it ``began`` to coordinate. Times are monotonic seconds of its process."""

    def __init__(self, began: float = float("-inf")) -> None:
        self._confirmed: Mapping[str, float] = {}
        """Names for which the Leases were listed, with the time of the look after that (infinity: it is the
        next): these may be judged by silence. It counts while one is judged, or does not change its Lease."""
        self._unshown: tuple[RoundLease, float] | None = None
        """What it has written and its watch has not shown yet, and since when."""
        self._failed, self._fails = began, False

    def fail(self, now: float) -> None:
        """A request of this participant has failed."""
        self._failed, self._fails = now, True

    def succeed(self, now: float) -> None:
        """A request has been answered. Until then those of others may have failed, too."""
        if self._fails:
            self._failed, self._fails = now, False

    def is_deaf(self, lease: RoundLease | None, sight: Sight, now: float) -> bool:
        """Whether the watch of the participants' Leases has not brought a write of this coordinator for too
        long: its connection may be dead, while others see it renew, and wait for it."""
        shown = sight.round_lease
        if self._unshown is not None and (shown is None or not shown.older_than(self._unshown[0])):
            self._unshown = None
        if self._unshown is None and lease is not None and shown is not None and shown.older_than(lease):
            self._unshown = lease, now
        if self._unshown is None or now - self._unshown[1] <= DEAF_SECONDS:
            return False
        self._unshown = None
        return True

    def must_list(self, unheard: Collection[str], sight: Sight, now: float) -> bool:
        """Whether the Leases have to be listed before these are judged: the watch may hang."""
        known = {
            name: min(at, now)
            for name, at in self._confirmed.items()
            if name in unheard or (name in sight.peers and sight.peers[name].silent >= now - min(at, now))
        }
        new = {name: float("inf") for name in unheard if name not in known}
        self._confirmed = {**known, **new}
        return bool(new)

    def wait(self, unheard: Collection[str], sight: Sight, now: float) -> float:
        """For how many seconds these are not judged yet: the API server was away a moment ago, for others,
        too, and they try to write again after a pause."""
        if not unheard:
            return 0.0
        return max(0.0, CATCH_UP_SECONDS - min(now - self._failed, sight.failed))


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
