"""What a coordinator sees of a run's participants at one moment. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.reports import FailureReport, ProgressReport, RoundReport
from elasticjob.peers.round_lease import RoundLease

MOST_MISSED = 1_000_000
"""How many rounds ahead of the record a participant may be: the round Lease was deleted. No run has so
many."""


@dataclass(frozen=True)
class Peer:
    """A participant, as its Lease has it. ``key`` is its pod's UID."""

    name: str
    key: str
    record: ParticipantRecord
    slot: int | None = None
    report: RoundReport | None = None
    unreadable_report: bool = False
    failure: FailureReport | None = None
    progress: ProgressReport | None = None
    silent: float = 0.0
    """For how many seconds the coordinator has seen no change of its Lease, by its own clock (P6)."""
    renewed: float | None = None
    """For how many seconds it was not seen to change; infinity: lists alone have shown it. None: ``silent``.
    ``silent`` may be less: time without a watch does not count in it."""


@dataclass(frozen=True)
class Sight:
    """``wall`` is for people and for windows of minutes; ``nonce`` is for a round that this look may
    publish."""

    peers: Mapping[str, Peer]
    """By the pod's name."""
    wall: datetime
    nonce: str
    unreadable: frozenset[str] = frozenset()
    """Names of participants whose Leases can't be read: they are there, and no more is known than what they
    report, perhaps."""
    gone: Mapping[str, str] = field(default_factory=dict)
    """The proof that an agent has ended, in words, by its pod's UID: its pod has ended, or its port refuses
    connections."""
    live_pods: Mapping[str, str] | None = None
    """The UIDs of the run's live pods by name; None: this coordinator does not see them."""
    others: Mapping[str, str] = field(default_factory=dict)
    """The pods' UIDs, by name, of the Leases of other runs of this name."""
    other_runs: Mapping[str, str] = field(default_factory=dict)
    """The ids of the runs that these are of."""
    said: Mapping[str, ParticipantRecord] = field(default_factory=dict)
    """What these participants have announced, by name, as far as it can be read."""
    suspects: frozenset[str] = frozenset()
    """Names of former coordinators that have shown no sign of life since they were replaced: not to be
    chosen."""
    older: frozenset[str] = frozenset()
    """Names of participants whose Leases were made before the round Lease, by the API server's clock: each
    would have made it at once, so that there was another, which is deleted. Only where that is asked: of a
    first record, and of one that is ``unsure``."""
    round_age: float | None = 0.0
    """How many seconds ago this participant has seen the present round begin; None: it has not."""
    finished: frozenset[str] = frozenset()
    """Of those that are ``gone``, the UIDs of pods that have ended with exit code 0 and were not taken
    away."""
    staying: frozenset[str] | None = None
    """The UIDs of the pods that nothing takes away: they are neither deleted nor evicted. None: this
    coordinator does not see them."""
    round_lease: RoundLease | None = None
    """The round Lease as the watch of the participants' Leases shows it; None: it does not."""
    failed: float = float("inf")
    """How many seconds ago the watch of the participants' Leases failed; infinity: it has not."""
    reports: Mapping[str, RoundReport] = field(default_factory=dict)
    """What those that are ``unreadable`` otherwise report, by name. The nonce shows of which round."""
    pending: frozenset[str] = frozenset()
    """Names of the pods in sight that have not started: they have no node yet, or no image."""

    def is_there(self, name: str, key: str) -> bool:
        """Whether this incarnation may live although its Lease can't be read, or was deleted by hand."""
        return name in self.unreadable or (self.live_pods or {}).get(name) == key

    def taken_away(self, key: str) -> bool:
        """Whether it is known that this pod was, or is being, deleted or evicted."""
        return self.staying is not None and key not in self.staying

    def credible(self, run: str, number: int) -> Sight:
        """This one without the participants that claim to have seen far later rounds than ``number``, that of
        the record: they count as unreadable. The next round would have a number that cannot be followed by
        another (P7)."""
        wrong = {n for n, peer in self.peers.items() if peer.record.seen(run) > number + MOST_MISSED}
        if not wrong:
            return self
        peers = {name: peer for name, peer in self.peers.items() if name not in wrong}
        return replace(self, peers=peers, unreadable=self.unreadable | wrong)

    def highest_seen(self, run: str) -> int:
        """The highest number of a round of this run that a participant has seen."""
        return max((peer.record.seen(run) for peer in self.peers.values()), default=0)

    def ports(self, peers: Iterable[Peer]) -> dict[str, str]:
        """The endpoints of those of these that may live, by their pods' UIDs."""
        return {p.key: p.record.endpoint for p in peers if p.key not in self.gone and p.record.endpoint}

    def is_behind(self, lease: RoundLease | None) -> bool:
        """Whether it may be of a time before this version of the round Lease."""
        shown = self.round_lease
        return lease is not None and (shown is None or shown.older_than(lease))

    def may_go_on(self, name: str, key: str) -> bool:
        """Whether this participant of another run may be in a round of it, or close it."""
        there = self.others.get(name) == key or self.is_there(name, key)
        return there and key not in self.gone and not self.has_ended(name, key)

    def has_ended(self, name: str, key: str) -> bool:
        """Whether this participant of another run says that it has succeeded, or ends without success."""
        record = self.said_by(name, key)
        return record is not None and record.state in (AnnouncedState.SUCCEEDED, AnnouncedState.LEAVING)

    def said_by(self, name: str, key: str) -> ParticipantRecord | None:
        """What this incarnation of a participant of another run has announced in the Lease of its own name:
        a copy of that may have its UID, too."""
        return self.said.get(name) if self.others.get(name) == key else None

    def has(self, name: str, key: str) -> Peer | None:
        """This incarnation of a participant, if its Lease is there."""
        peer = self.peers.get(name)
        return peer if peer is not None and peer.key == key else None
