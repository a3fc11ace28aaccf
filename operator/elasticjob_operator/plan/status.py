"""``ElasticJob.status`` as frozen data.

The status is the write-ahead log: all that the round Lease says, and the time of every charge
inside a window, stand here first, so that an operator that dies between any two writes resumes.
How it stands in JSON is in ``status_json``; a field's JSON name is its own in camel case, or that which
``named`` gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from elasticjob.rounds.state import Member, MemberState

MAX_ROUNDS = 20
"""Rounds kept in the history."""
MAX_CHARGES = 20
"""Charges of an account that are listed; all inside its window count."""
MAX_NEWCOMERS = 100
"""Newcomers of a round that are listed."""
MAX_OLDER = 102
"""Counts of those that are not listed: a hundred to a window."""


def named(json: str, default: Any = None) -> Any:
    """A field with a JSON name of its own."""
    return field(default=default, metadata={"json": json})


def always(default: Any) -> Any:
    """A field that stands in the JSON also where it has its default."""
    return field(default=default, metadata={"always": True})


@dataclass(frozen=True)
class Condition:
    """One of ``status.conditions``; ``status`` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str = always("")
    transition: datetime | None = named("lastTransitionTime")
    observed_generation: int = always(0)


@dataclass(frozen=True)
class Named:
    """A pod that somebody who must know has named unreachable, and when."""

    pod: str
    time: datetime


@dataclass(frozen=True)
class Absent:
    """A member of ``round`` that nobody had heard of when the next was published: a standby had its seat."""

    pod: str
    uid: str
    round: int
    rank: int | None = None


@dataclass(frozen=True)
class RoundStatus:
    """``status.round``. ``number`` 0 with phase Broken is the time before the first round.

    ``cause``, ``account`` and ``message`` say why the round was formed; once it is Broken or Closed, why it
    ended; then ``rule`` is the failure rule that has decided, if one has, ``root_milliseconds`` how long
    after the round's barrier its root failure was, ``detect_milliseconds`` how long it took to be noticed,
    and ``charged`` when it was charged, if it was. ``enough`` is since when enough have joined for
    the first round; ``held`` since when pods have held nodes without a round,
    and ``held_seconds`` for how long they had before. ``establish_failures`` counts rounds in a row that were
    not established, ``early_ends`` those before this one that ended without progress;
    ``missing`` are the pods that were absent in the last of them, ``not_leading`` those that
    could not be reached as leader. ``newcomers`` are pods that the round before was formed without (none in
    the first), ``newcomers_lost`` how many rounds in a row before this one have lost such pods, made by
    others, early, and ``newcomers_lost_time`` when the last of them did. ``named`` are those that were named
    unreachable of late, in whatever round; ``absent`` those who may turn out to have been the root of a round
    before this one.
    """

    number: int = always(0)
    phase: str = always("Broken")
    nonce: str = ""
    leader: str = ""
    leader_endpoint: str = ""
    members: int = always(0)
    processes: int | None = None
    start: datetime | None = named("startTime")
    established: datetime | None = named("establishedTime")
    broken: datetime | None = named("brokenTime")
    enough: datetime | None = named("enoughTime")
    held: datetime | None = named("heldTime")
    held_seconds: int = 0
    cause: str = ""
    account: str = ""
    rule: str = ""
    message: str = ""
    outcome: str = ""
    root_milliseconds: int | None = None
    detect_milliseconds: int | None = None
    charged: datetime | None = named("chargedTime")
    establish_failures: int = 0
    early_ends: int = 0
    newcomers: tuple[str, ...] = ()
    newcomers_lost: int = 0
    newcomers_lost_time: datetime | None = None
    missing: tuple[str, ...] = ()
    not_leading: tuple[str, ...] = ()
    named: tuple[Named, ...] = ()
    absent: tuple[Absent, ...] = ()


@dataclass(frozen=True)
class ParticipantStatus:
    """One of ``status.participants``. ``rank`` is None unless it is or was a member of the round.

    ``done``: its container has ended with 0, which is what a job of pods that the operator makes waits for.
    ``restarts``: how often its container had been restarted when it joined.
    States: Member, Succeeded (member), Lost (member whose loss is established), Left (member that has
    left the round and lives), Unreachable (member that was named lost), Standby, Joining.
    """

    id: str
    pod: str
    uid: str
    state: str
    slot: int | None = None
    rank: int | None = None
    address: str = ""
    node: str = ""
    nproc: str = ""
    message: str = ""
    done: bool = False
    restarts: int = 0


@dataclass(frozen=True)
class Ignored:
    """One of ``status.ignored``: a pod of which something is ignored, and why."""

    pod: str
    message: str


@dataclass(frozen=True)
class RoundHistory:
    """One of ``status.rounds``: why this round was formed, and when; milliseconds from the end of the round
    before. ``detect``: until that end, since what caused it. ``first_step`` and ``step`` are the first and
    the highest step that were reported in this round."""

    number: int
    cause: str
    members: int
    start: datetime = field(metadata={"json": "startTime"})
    account: str = ""
    end: datetime | None = named("endTime")
    detect_milliseconds: int | None = None
    rendezvous_milliseconds: int | None = None
    first_step_milliseconds: int | None = None
    first_step: int | None = None
    step: int | None = None
    rule: str = ""
    message: str = ""


@dataclass(frozen=True)
class Charge:
    """A restart charged to an account: for the end of ``round``, or for ``pod``, which ended while it was no
    member. Either is a key, and one charge may have both: charging again changes nothing. ``node`` is where
    the root failure was, ``message`` the sentence on it, cut short. ``beside`` is the round that went on
    meanwhile: nothing was restarted, and no limit counts it."""

    time: datetime
    round: int | None = None
    pod: str = ""
    cause: str = ""
    node: str = ""
    message: str = ""
    beside: int | None = None


@dataclass(frozen=True)
class Older:
    """So many charges that are listed no more; ``until`` is when the newest of them was made."""

    until: datetime = field(metadata={"json": "untilTime"})
    charges: int = always(0)


@dataclass(frozen=True)
class Account:
    """One of ``status.accounts``. ``used`` are the charges inside the window that count: the newest are
    listed, the others counted by the time that they leave it."""

    name: str
    limit: int | None = None
    window_seconds: int | None = None
    charges: tuple[Charge, ...] = ()
    older: tuple[Older, ...] = ()

    @property
    def used(self) -> int:
        """How many charges are inside the window."""
        listed = sum(charge.beside is None for charge in self.charges)
        return listed + sum(entry.charges for entry in self.older)

    def charged(self, charge: Charge) -> Account:
        """With one more charge."""
        return replace(self, charges=tuple(sorted((*self.charges, charge), key=lambda c: c.time))).counted()

    def counted(self, listed: int = MAX_CHARGES) -> Account:
        """With no more than so many of the newest charges listed, the others counted.

        What is counted leaves the window up to a hundredth of it late; without a window by the hour.
        """
        spare = self.charges[:-listed]
        if not spare:
            return self
        width = max(1.0, (self.window_seconds or 360_000) / 100)
        older = list(self.older)
        for charge in spare:
            if charge.beside is not None:
                continue
            last = older[-1] if older else None
            if last is not None and last.until.timestamp() // width >= charge.time.timestamp() // width:
                older[-1] = Older(max(last.until, charge.time), last.charges + 1)
            else:
                older.append(Older(charge.time, 1))
        while len(older) > MAX_OLDER:
            first, second, *others = older
            older = [Older(second.until, first.charges + second.charges), *others]
        return replace(self, charges=self.charges[-listed:], older=tuple(older))

    def since(self, time: datetime) -> Account:
        """With the charges that are younger than ``time``."""
        return replace(
            self,
            charges=tuple(c for c in self.charges if c.time > time),
            older=tuple(entry for entry in self.older if entry.until > time),
        )


@dataclass(frozen=True)
class Failure:
    """``status.lastFailure``: the root of the last failure. ``exit_code`` is None where it could not be
    learnt; ``logs`` is the command that shows the log to read on; ``uid`` and ``node`` are the pod's, and
    ``restarts`` is how often its container had been restarted when it joined."""

    pod: str
    time: datetime
    message: str = always("")
    rank: int | None = None
    exit_code: int | None = None
    round: int | None = None
    uid: str = ""
    node: str = ""
    logs: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class ExcludedNode:
    """One of ``status.excludedNodes``: new pods avoid it until then, or until it was lifted, because too few
    pods could be placed without it."""

    name: str
    until: datetime = field(metadata={"json": "untilTime"})
    message: str = ""
    lifted: datetime | None = named("liftedTime")


@dataclass(frozen=True)
class Setback:
    """One of ``status.setbacks``: a slot whose pods lately ended early, the last of them and when. ``count``
    is how many in a row, but for a first one that was a member; ``joined`` how many of them had joined."""

    slot: int
    pod: str
    count: int
    time: datetime
    joined: int = 0


@dataclass(frozen=True)
class Lost:
    """Milliseconds without progress that are due to one cause."""

    cause: str
    milliseconds: int = 0


@dataclass(frozen=True)
class Progress:
    """``status.progress``; None for a job that reports no steps.

    ``round`` is the last round in which a step was reported, ``first_step`` the first of it and ``step``
    the highest. ``trained_milliseconds`` is the time in steps of the rounds before it, without steps that
    were done again, ``training_milliseconds`` that of this round; ``lost`` is the rest, by the cause of the
    round that followed. ``goodput_percent`` is the former as a share of all. Time in which the job was
    suspended is in neither. ``counted`` is the moment up to which both are complete, but for
    ``training_milliseconds``. ``rounds_without_progress`` counts rounds in a row that resumed from no later a
    step than the one before.
    """

    step: int = always(0)
    milliseconds_per_step: int | None = None
    goodput_percent: int | None = None
    lost_seconds: int | None = None
    report: datetime | None = named("reportTime")
    round: int = 0
    first_step: int = 0
    training_milliseconds: int = 0
    trained_milliseconds: int = 0
    lost: tuple[Lost, ...] = ()
    counted: datetime | None = named("countedTime")
    rounds_without_progress: int = 0


@dataclass(frozen=True)
class JobStatus:
    """``status``. ``attempts[slot]`` is the newest attempt number of that slot's pod, -1 for none yet.
    ``charged_pods`` are pods that are there, have ended as no members, and are charged for: ``slot-attempt``.
    ``active`` is when the job was started, or resumed last. ``left_out`` says what is not there for its size
    (``budget``)."""

    observed_generation: int = always(0)
    conditions: tuple[Condition, ...] = always(())
    start: datetime | None = named("startTime")
    active: datetime | None = named("activeTime")
    completion: datetime | None = named("completionTime")
    replicas: int = always(0)
    selector: str = ""
    min_replicas: int = 0
    restarts: int = always(0)
    attempts: tuple[int, ...] = always(())
    charged_pods: tuple[str, ...] = ()
    round: RoundStatus = always(RoundStatus())
    participants: tuple[ParticipantStatus, ...] = always(())
    ignored: tuple[Ignored, ...] = ()
    rounds: tuple[RoundHistory, ...] = always(())
    accounts: tuple[Account, ...] = always(())
    last_failure: Failure | None = None
    excluded_nodes: tuple[ExcludedNode, ...] = ()
    setbacks: tuple[Setback, ...] = ()
    left_out: str = ""
    progress: Progress | None = None

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, or None before the first write."""
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether that condition is there and True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    @property
    def finished(self) -> bool:
        """Complete or Failed: both are final."""
        return self.is_true("Complete") or self.is_true("Failed")

    def members(self) -> tuple[ParticipantStatus, ...]:
        """The members of ``round`` (also of one that is over), in rank order."""
        return self._members

    # Asked for each pod in each pass: without a memory a pass is quadratic in the size of the job.

    @cached_property
    def _members(self) -> tuple[ParticipantStatus, ...]:
        return tuple(sorted((p for p in self.participants if p.rank is not None), key=lambda p: p.rank or 0))

    @cached_property
    def kernel_members(self) -> tuple[Member, ...]:
        """The members, as the round kernel knows them."""
        return kernel_members(self._members)

    @cached_property
    def member_ids(self) -> frozenset[str]:
        """The ids of the members."""
        return frozenset(m.id for m in self._members)

    @cached_property
    def member_uids(self) -> frozenset[str]:
        """The UIDs of the members' pods."""
        return frozenset(m.uid for m in self._members)

    @cached_property
    def lost(self) -> frozenset[str]:
        """The UIDs of the pods of the members whose loss is established."""
        return frozenset(m.uid for m in self._members if m.state == MemberState.LOST)

    def dump(self) -> dict[str, Any]:
        """The status as JSON, without what is absent."""
        from elasticjob_operator.plan.status_json import dump

        return dump(self)

    @staticmethod
    def parse(fields: Mapping[str, Any] | None) -> JobStatus:
        """Read what an operator wrote. Raises ValueError for anything else."""
        from elasticjob_operator.plan.status_json import parse

        return parse(fields or {})


def kernel_members(members: Iterable[ParticipantStatus]) -> tuple[Member, ...]:
    """Members, as the kernel knows them."""
    return tuple(Member(m.id, m.pod, m.uid, m.rank or 0, m.state, m.message, m.node) for m in members)


def with_condition(
    conditions: Iterable[Condition], condition: Condition, wall: datetime
) -> tuple[Condition, ...]:
    """Replace the condition of the same type; the transition time moves only with ``status``."""
    result = []
    found = False
    second = wall.replace(microsecond=0)  # all that a condition has
    for old in conditions:
        if old.type == condition.type:
            found = True
            same = old.status == condition.status
            result.append(replace(condition, transition=old.transition if same else second))
        else:
            result.append(old)
    if not found:
        result.append(replace(condition, transition=second))
    return tuple(result)
