"""What is known of a round and its members, and ``Look``: the kernel's input and output. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from elasticjob.contract.enums import StrEnum
from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import Phase
from elasticjob.contract.text import node_words
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.waits import RoundWait, Waits


class MemberState(StrEnum):
    """The state of a member of a round.

    * Member: nothing speaks against it.
    * Succeeded: its workers have finished this round well.
    * Left: it has left the round and is alive: it has announced itself again, or is shutting down.
    * Unreachable: a peer that must know has reported it; it may still come back by itself.
    * Lost: it will not come back.

    Unreachable and Lost stay: the witness may be gone at the next look.
    """

    MEMBER = "Member"
    SUCCEEDED = "Succeeded"
    LEFT = "Left"
    UNREACHABLE = "Unreachable"
    LOST = "Lost"


GONE = (MemberState.LEFT, MemberState.UNREACHABLE, MemberState.LOST)
"""States of members without which the round can't go on."""


@dataclass(frozen=True)
class Member:
    """A member of a round. ``id`` is that of its announcement; ``key`` tells its incarnation from others of
    the same ``name``; ``place`` is where it runs, with others that may be lost together with it."""

    id: str
    name: str
    key: str
    group_rank: int
    state: str = MemberState.MEMBER.value
    message: str = ""
    place: str = ""

    @property
    def where(self) -> str:
        """Its name, and its node where that is known: ``mnist-2-0 on node-b``."""
        return f"{self.name} on {node_words(self.place)}" if self.place else self.name


@dataclass(frozen=True)
class UnreachableReport:
    """A peer that must know has reported this participant unreachable."""

    name: str
    time: datetime


@dataclass(frozen=True)
class RoundState:
    """One round: everything that has to survive from one look to the next.

    ``number`` 0 with phase Broken is the time before the first round. ``cause``: why a round that is over has
    ended. ``established``: when the leader reported that every member had reached it. ``resumed``: the next
    round is waited for as long as the first. ``quorum_time``: since when enough have joined for the first
    round. ``establish_failures``: how many rounds in a row were not established; ``unarrived``: the
    participants that did not reach the leader of the last of them. ``ineligible_leaders``: those that could
    not be reached as a leader. ``unreachable_reports``: those that were recently reported unreachable, in any
    round.
    """

    number: int = 0
    phase: str = Phase.BROKEN.value
    nonce: str = ""
    members: tuple[Member, ...] = ()
    cause: str = ""
    start: datetime | None = None
    established: datetime | None = None
    resumed: bool = False
    quorum_time: datetime | None = None
    establish_failures: int = 0
    unarrived: tuple[str, ...] = ()
    ineligible_leaders: tuple[str, ...] = ()
    unreachable_reports: tuple[UnreachableReport, ...] = ()

    @property
    def leader(self) -> Member | None:
        """The member with rank 0."""
        return self.members[0] if self.members else None

    @property
    def active(self) -> bool:
        """Whether the round runs."""
        return self.phase == Phase.ACTIVE.value


@dataclass(frozen=True)
class Heard:
    """What was heard from a member. ``report``: what it says of this very round. ``unreadable``: it has made
    a report that can't be read. ``silent_seconds``: for how many seconds nothing was heard of it."""

    report: RoundReport | None = None
    unreadable: bool = False
    silent_seconds: float = 0.0


@dataclass(frozen=True)
class Finding:
    """Something that speaks against the round, on one of its members or on none.

    ``detect_milliseconds``: how long it took to be noticed, where the witness knows.
    """

    cause: Cause
    message: str
    member: Member | None = None
    detect_milliseconds: int | None = None


@dataclass
class Look:
    """One look at a round: the state, how to ask what was heard from a member, and what came of it.

    ``hear`` returns None for a member that is not known any more. ``readable``: whether the participants can
    read this state: none is judged by what it could not read. ``wall`` is for what people read and for
    windows; ``waits`` has the clock for judgements.
    """

    state: RoundState
    limits: Limits
    waits: Waits
    wall: datetime
    hear: Callable[[Member], Heard | None]
    readable: bool = True
    present: Container[str] | None = None
    """The names of all participants that are there, if that is known."""
    judged_unheard: set[str] = field(default_factory=set)
    """Names of members that were judged by what has not been heard of them."""
    judged_silent: set[str] = field(default_factory=set)
    """Names of members against which their silence was used."""
    avoid: list[tuple[str, str]] = field(default_factory=list)
    """Places that new participants had better avoid, and why."""

    def left(self, kind: RoundWait, limit: float, awaited: bool = True) -> float:
        """Declare a wait for what this round's participants have to do. It begins when they can read the
        state. Until then all of ``limit`` is left, and another look is due: the write that makes the state
        readable need not bring an event. Unless a participant is ``awaited`` the time runs, and nothing
        waits."""
        number = self.state.number
        if not self.readable:
            self.waits.wake(max(1.0, self.waits.elapsed(RoundWait.RECORD, number)))
            return limit
        if awaited:
            return self.waits.left(kind, number, limit)
        return max(0.0, limit - self.waits.elapsed(kind, number))

    def set(self, **changes: Any) -> None:
        """Change the state."""
        if any(getattr(self.state, name) != value for name, value in changes.items()):
            self.state = replace(self.state, **changes)

    def set_members(self, changed: Mapping[str, Member]) -> None:
        """Replace the members with these ids."""
        if changed:
            self.set(members=tuple(changed.get(m.id, m) for m in self.state.members))

    def report_of(self, member: Member) -> RoundReport | None:
        """What this member says of this round."""
        heard = self.hear(member)
        return heard.report if heard is not None else None

    def exclude_from_leading(self, name: str) -> None:
        """This participant must not lead the next round. Those that are gone are forgotten."""
        ineligible = {
            other for other in self.state.ineligible_leaders if self.present is None or other in self.present
        }
        self.set(ineligible_leaders=tuple(sorted({*ineligible, name})))
