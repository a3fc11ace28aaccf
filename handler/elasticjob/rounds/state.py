"""The state of a round and its members, and ``RoundView``, the kernel's input and output. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import Phase
from elasticjob.contract.str_enum import StrEnum
from elasticjob.contract.text import node_words
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.waits import RoundWait, Waits


class MemberState(StrEnum):
    """The state of a member of a round.

    * Member: nothing speaks against it.
    * Succeeded: its workers have finished this round well.
    * Left: it has left the round and is alive: it has announced itself again, or is shutting down.
    * Unreachable: a peer has reported it, and the kernel believes that; it may still come back by itself.
    * Lost: it will not come back.

    Unreachable and Lost stay: the witness may be gone at the next pass.
    """

    MEMBER = "Member"
    SUCCEEDED = "Succeeded"
    LEFT = "Left"
    UNREACHABLE = "Unreachable"
    LOST = "Lost"


GONE = (MemberState.LEFT, MemberState.UNREACHABLE, MemberState.LOST)
"""States of members without which the round can't continue."""


@dataclass(frozen=True)
class Member:
    """A member of a round."""

    id: str
    """That of its announcement."""
    name: str
    key: str
    """Unique to its incarnation: others may have had the same ``name``."""
    group_rank: int
    """Its index in ``RoundState.members``."""
    state: str = MemberState.MEMBER.value
    """A ``MemberState``, or one of the caller's own."""
    message: str = ""
    """Why it is in this state, as a sentence."""
    place: str = ""
    """Its node: members on one may be lost together; "": not known."""

    @property
    def where(self) -> str:
        """Its name, and its node where that is known: ``mnist-2-0 on node-b``."""
        return f"{self.name} on {node_words(self.place)}" if self.place else self.name


@dataclass(frozen=True)
class UnreachableReport:
    """A peer has reported this participant unreachable, as far as the kernel believes it."""

    name: str
    time: datetime


@dataclass(frozen=True)
class RoundState:
    """One round: everything that has to survive from one pass to the next."""

    number: int = 0
    """0 with phase Broken: the time before the first round."""
    phase: str = Phase.BROKEN.value
    nonce: str = ""
    members: tuple[Member, ...] = ()
    """Rank order: ``members[i].group_rank == i``."""
    cause: str = ""
    """Why the round has ended; "" while it runs."""
    start: datetime | None = None
    established: datetime | None = None
    """When the leader reported that every member had reached it."""
    resumed: bool = False
    """The next round waits for participants as long as the first."""
    quorum_time: datetime | None = None
    """Since when enough have joined for the first round, or for one after ``resumed``."""
    establish_failures: int = 0
    """How many rounds in a row were not established; 0 once ``established`` is set."""
    unarrived: tuple[str, ...] = ()
    """Names of those that did not reach the leader of the last of these rounds."""
    ineligible_leaders: tuple[str, ...] = ()
    """Names of those that could not be reached as leader, sorted."""
    unreachable_reports: tuple[UnreachableReport, ...] = ()
    """Who was reported unreachable recently, in any round."""

    @property
    def leader(self) -> Member | None:
        """The member with rank 0."""
        return self.members[0] if self.members else None

    @property
    def active(self) -> bool:
        """Whether the round runs."""
        return self.phase == Phase.ACTIVE.value

    @property
    def trains(self) -> bool:
        """Whether it runs, and its leader has reported that all members have reached it."""
        return self.active and self.established is not None


RENEWED_WITHIN_SECONDS = 1.0
"""What was renewed within this time may be shown as renewed now."""


@dataclass(frozen=True)
class Heard:
    """What was heard from a member."""

    report: RoundReport | None = None
    """What it says of this very round."""
    unreadable: bool = False
    """It has made a report that can't be read."""
    silent_seconds: float = 0.0
    """How long nothing was heard of it."""
    renewed_seconds: float | None = None
    """How long ago it was seen to renew its announcement; infinity: a list has shown it, and nothing since.
    None: as long as nothing was heard of it."""


@dataclass(frozen=True)
class Finding:
    """Something that speaks against the round."""

    cause: Cause
    message: str
    member: Member | None = None
    """The member that it is about, if it is about one."""
    detect_milliseconds: int | None = None
    """How long it took to notice it, if the witness knows."""


@dataclass
class RoundView:
    """A round in one pass: the input of the kernel's functions, which change it."""

    state: RoundState
    limits: Limits
    waits: Waits
    """They have the monotonic clock, by which members are judged."""
    wall: datetime
    """The clock for what people read, and for windows of minutes."""
    hear: Callable[[Member], Heard | None]
    """What was heard from a member; None: it is no longer known."""
    readable: bool = True
    """Whether the participants can read this state: none is judged by what it could not read."""
    present: Container[str] | None = None
    """The names of all participants that are there; None: not known."""
    judged_unheard: set[str] = field(default_factory=set)
    """Names of members that were judged by what has not been heard of them."""
    judged_silent: set[str] = field(default_factory=set)
    """Names of members against which their silence was used."""
    avoid: list[tuple[str, str]] = field(default_factory=list)
    """Places that new participants should avoid, and why."""

    def left(self, kind: RoundWait, limit: float, awaited: bool = True) -> float:
        """Declare a wait for what this round's participants have to do; returns the seconds that are left.

        It begins when they can read the state. Until then all of ``limit`` is left, and another pass is due:
        the write that makes the state readable need not bring an event. If no participant is ``awaited`` the
        time runs, but no wait is declared."""
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
