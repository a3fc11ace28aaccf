"""``ElasticJob.status`` as frozen data.

The status is the write-ahead log: all that the round Lease says, and the time of every charge
inside a window, are here first, so that an operator that dies between any two writes resumes.
How it is written as JSON is in ``status_json``; a field's JSON name is its own in camel case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from elasticjob.contract.round_record import Phase
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import MemberState, UnreachableReport
from elasticjob_operator.plan.state.evidence import CAUSES
from elasticjob_operator.plan.state.json_fields import always, internal, named
from elasticjob_operator.plan.state.restart_accounts import Account

MAX_ROUNDS = 20
"""Rounds kept in the history."""
COMPLETED = "Completed"
"""The state of a member that has succeeded and whose container has ended with 0."""
MAX_NEWCOMERS = 100
"""Newcomers of a round that are listed."""


@dataclass(frozen=True)
class Condition:
    """One of ``status.conditions``; ``status`` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str = always("")
    last_transition_time: datetime | None = None
    observed_generation: int = always(0)


@dataclass(frozen=True)
class UnaccountedMember:
    """A member of ``round`` that was not heard of when the next was published: a standby took its rank."""

    pod_name: str
    pod_uid: str
    round: int
    group_rank: int | None = None


@dataclass(frozen=True)
class RoundEnd:
    """Why a round has ended. ``rule_name`` is the failure rule that has decided, if one has;
    ``detect_milliseconds`` is how long it took to be noticed. ``drain``: of a planned change, how its workers
    were stopped (``draining.HowStopped``)."""

    time: datetime | None = None
    cause: str = ""
    account: str = ""
    rule_name: str = ""
    message: str = ""
    detect_milliseconds: int | None = None
    drain: str = ""


@dataclass(frozen=True)
class RoundDrain:
    """``status.currentRound.drain``: the round is to end for a planned change, and its workers are asked to
    stop at a common step before. ``cause`` and ``message`` are those of the change."""

    start_time: datetime
    deadline_time: datetime
    cause: str
    message: str


@dataclass(frozen=True)
class EarlyFailures:
    """Ends before joining since a round was published: how many attempts an account was charged for,
    and the pod that it was charged for last."""

    account: str
    attempts: int
    pod_name: str


RESUMED_MESSAGE = "the job was resumed"


@dataclass(frozen=True)
class Crossings:
    """One of ``currentRound.crossings``: by the label ``key`` of nodes, in how many ``domains`` the members
    are, and how many neighbours in the ring of ranks are in different ones, now and ``in_slot_order``."""

    key: str
    domains: int
    crossings: int
    in_slot_order: int


@dataclass(frozen=True)
class RoundStatus:
    """``status.currentRound``. ``number`` 0 with phase Broken is the time before the first round.

    ``cause``, ``account`` and ``message`` say why the round was formed, and ``end`` why it has ended.
    A round that drains still runs: its phase is Active and ``drain`` is set. What people and participants
    read is ``published_phase``: Draining.
    ``fenced``: all its workers have opened ``elasticjob.checkpoint``, which refuses what they save once a
    later round has begun.
    ``resumed``: the job was resumed after it had ended, and the next round waits like the first.
    ``failure_offset_milliseconds`` is how long after the round's barrier the root failure of its end was, and
    ``charged_time`` when that was charged, if it was. ``quorum_time`` is since when enough have joined for
    the first round; ``idle_since_time`` since when pods have held nodes without a round, and ``idle_seconds``
    for how long they had before. ``establish_failures`` counts rounds in a row that were not established,
    ``early_end_streak`` those before this one that ended without progress; ``unarrived_pods`` are the pods
    that were absent in the last of them, ``ineligible_leaders`` those that could not be reached as leader.
    ``newcomers`` are pods that the round before was formed without (none in the first),
    ``newcomers_lost`` how many rounds in a row before this one have lost such pods, made by others, early,
    and ``newcomers_lost_time`` when the last of them did.
    ``unreachable_reports`` are those that were reported unreachable of late, in any round;
    ``unaccounted_members`` those that may turn out to have been the root of a round before this one.
    ``early_failures`` is what was charged since for pods that ended before they joined.
    """

    number: int = always(0)
    phase: str = always("Broken")
    nonce: str = internal("")
    leader_pod_name: str = ""
    leader_endpoint: str = internal("")
    members: int = always(0)
    world_size: int | None = None
    crossings: tuple[Crossings, ...] = ()
    start_time: datetime | None = None
    established_time: datetime | None = None
    quorum_time: datetime | None = internal(None)
    idle_since_time: datetime | None = internal(None)
    idle_seconds: int = internal(0)
    cause: str = ""
    account: str = ""
    message: str = ""
    drain: RoundDrain | None = None
    end: RoundEnd | None = None
    fenced: bool = False
    resumed: bool = internal(False)
    failure_offset_milliseconds: int | None = internal(None)
    charged_time: datetime | None = internal(None)
    establish_failures: int = internal(0)
    early_end_streak: int = internal(0)
    newcomers: tuple[str, ...] = internal(())
    newcomers_lost: int = internal(0)
    newcomers_lost_time: datetime | None = internal(None)
    unarrived_pods: tuple[str, ...] = internal(())
    ineligible_leaders: tuple[str, ...] = internal(())
    unreachable_reports: tuple[UnreachableReport, ...] = internal(())
    unaccounted_members: tuple[UnaccountedMember, ...] = internal(())
    early_failures: tuple[EarlyFailures, ...] = internal(())

    @property
    def published_phase(self) -> str:
        """The phase, for people and participants."""
        return self.phase if self.drain is None else Phase.DRAINING.value

    @property
    def next_cause(self) -> RoundEnd:
        """Why the round after this one is formed: what has ended this one, or that the job was resumed
        since."""
        end = self.end or RoundEnd()
        if not self.resumed:
            return end
        account = CAUSES[Cause.RESUMED]
        return RoundEnd(end.time, Cause.RESUMED.value, account, message=RESUMED_MESSAGE)


@dataclass(frozen=True)
class ParticipantStatus:
    """One of ``status.participants``. ``group_rank`` is None unless it is or was a member of
    the round.

    ``container_restarts``: how often its container had been restarted when it joined.
    States: Member, Succeeded (member), Completed (member
    whose container has ended with 0, too: what a job of pods that the operator makes waits for), Lost
    (member whose loss is established), Left (member that left the round and is alive), Unreachable (member
    that was reported unreachable), Standby, Joining.
    """

    id: str
    pod_name: str
    pod_uid: str
    state: str
    slot: int | None = None
    group_rank: int | None = None
    node_name: str = ""
    local_world_size: int | None = None
    message: str = ""
    container_restarts: int = 0

    @property
    def succeeded(self) -> bool:
        """Its workers have finished the round well."""
        return self.state in (MemberState.SUCCEEDED, COMPLETED)

    @property
    def completed(self) -> bool:
        """Its training container has ended with 0, too."""
        return self.state == COMPLETED


@dataclass(frozen=True)
class IgnoredPod:
    """One of ``status.ignoredPods``: a pod of which something is ignored, and why."""

    pod_name: str
    message: str


@dataclass(frozen=True)
class WorkerStarts:
    """How many workers of a round started warm and how many cold, as far as its members have said;
    ``cold_reason`` is the reason of most of the latter."""

    warm: int = always(0)
    cold: int = always(0)
    cold_reason: str = ""


@dataclass(frozen=True)
class Resumed:
    """Where the state of a round came from: a word of ``state_source.Source``, or a newer handler's. ``step``
    is the last step that the state has, ``milliseconds`` the time that loading took, ``redone_steps`` how
    many steps of the rounds before are done again; None if these have reported none, or not the last."""

    step: int
    milliseconds: int
    source: str = named("from")
    redone_steps: int | None = None


@dataclass(frozen=True)
class RoundHistory:
    """One of ``status.roundHistory``: why and when this round was formed, and why it has ended. Milliseconds
    count from the end of the round before. ``first_step`` and ``last_step`` are the first and the highest
    step that were reported in this round. ``worker_starts`` is None where warm workers are off, ``resumed``
    where the script has not said where its state came from."""

    number: int
    cause: str
    members: int
    start_time: datetime
    end: RoundEnd | None = None
    rendezvous_milliseconds: int | None = None
    first_step_milliseconds: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    worker_starts: WorkerStarts | None = None
    resumed: Resumed | None = None


@dataclass(frozen=True)
class Failure:
    """``status.lastFailure``: the root of the last failure. ``exit_code`` is None where it could not be
    learnt; ``logs_command`` shows the log to read on; ``pod_uid`` and ``node_name`` are the pod's, and
    ``container_restarts`` is how often its container had been restarted when it joined."""

    pod_name: str
    time: datetime
    message: str = always("")
    group_rank: int | None = None
    exit_code: int | None = None
    round: int | None = None
    pod_uid: str = ""
    node_name: str = ""
    logs_command: str = ""
    container_restarts: int = 0


@dataclass(frozen=True)
class ExcludedNode:
    """One of ``status.excludedNodes``: new pods avoid it until then, or until it was lifted, because too few
    pods could be placed without it."""

    name: str
    until_time: datetime
    message: str = ""
    lifted_time: datetime | None = None


@dataclass(frozen=True)
class SlotBackoff:
    """One of ``status.internal.slotBackoffs``: a slot whose pods recently ended early, the last of them and
    when. ``count`` is how many in a row, but for a first one that was a member; ``joined`` how many of them
    had joined; ``unjoined`` how many ended by themselves before they had, since the last round was
    published."""

    slot: int
    pod_name: str
    count: int
    time: datetime
    joined: int = 0
    unjoined: int = 0


@dataclass(frozen=True)
class LostTime:
    """Milliseconds without progress that are due to one cause."""

    cause: str
    milliseconds: int = 0


@dataclass(frozen=True)
class Progress:
    """``status.progress``; None for a job that reports no steps.

    ``round`` is the last round in which a step was reported, ``first_step`` the first of it and ``step``
    the highest. ``trained_milliseconds`` is the time in steps of the rounds before it, without steps that
    were done again, ``training_milliseconds`` that of this round; ``lost_by_cause`` is the rest, by the
    cause of the round that followed. ``goodput_percent`` is the former as a share of all. Time in which the
    job was suspended is in neither. ``counted_time`` is the moment up to which both are complete, but for
    ``training_milliseconds``. ``rounds_without_progress`` counts rounds in a row that resumed from no later a
    step than the one before. ``lost_round`` is the last round that time was lost for, ``lost_milliseconds``
    how much.
    """

    step: int = always(0)
    milliseconds_per_step: int | None = None
    goodput_percent: int | None = None
    lost_seconds: int | None = None
    last_report_time: datetime | None = None
    round: int = internal(0)
    first_step: int = internal(0)
    training_milliseconds: int = internal(0)
    trained_milliseconds: int = internal(0)
    lost_by_cause: tuple[LostTime, ...] = ()
    counted_time: datetime | None = internal(None)
    rounds_without_progress: int = 0
    lost_round: int = internal(0)
    lost_milliseconds: int = internal(0)

    def lost(self, round_number: int, cause: str, milliseconds: int) -> Progress:
        """With the time that was lost until this round's first step, or its end without one."""
        return replace(
            self,
            lost_by_cause=self._more_lost({cause: milliseconds}),
            lost_round=round_number,
            lost_milliseconds=milliseconds,
        )

    def corrected(self, round_number: int, before: str, cause: str) -> Progress:
        """With the time lost for this round under another cause, if it is the last that was counted."""
        if round_number != self.lost_round or before == cause:
            return self
        moved = self._more_lost({before: -self.lost_milliseconds, cause: self.lost_milliseconds})
        return replace(self, lost_by_cause=tuple(entry for entry in moved if entry.milliseconds))

    def _more_lost(self, more: Mapping[str, int]) -> tuple[LostTime, ...]:
        """Sorted by cause, so that one state has one form."""
        by_cause = {entry.cause: entry.milliseconds for entry in self.lost_by_cause}
        by_cause |= {cause: by_cause.get(cause, 0) + added for cause, added in more.items()}
        return tuple(LostTime(*item) for item in sorted(by_cause.items()))


@dataclass(frozen=True)
class JobStatus:
    """``status``. ``attempts[slot]`` is the newest attempt number of that slot's pod, -1 for none yet.
    ``charged_pods`` are pods that are there, have ended as no members, and are charged for: ``slot-attempt``.
    ``start_time`` is when the job was started, or last resumed; None while it is suspended.
    ``completion_time`` is when it became Complete. ``active_seconds`` is for how long it was active before
    its last suspension, or its end. ``terminal_state`` is Complete or Failed once it has ended. ``omitted``
    says what is not there for its size (``status_size``)."""

    observed_generation: int = always(-1)
    conditions: tuple[Condition, ...] = always(())
    start_time: datetime | None = None
    completion_time: datetime | None = None
    active_seconds: int | None = None
    terminal_state: str = ""
    replicas: int = always(0)
    selector: str = ""
    min_replicas: int = 0
    restarts: int = always(0)
    attempts: tuple[int, ...] = internal(())
    charged_pods: tuple[str, ...] = internal(())
    current_round: RoundStatus = always(RoundStatus())
    participants: tuple[ParticipantStatus, ...] = always(())
    ignored_pods: tuple[IgnoredPod, ...] = ()
    round_history: tuple[RoundHistory, ...] = always(())
    accounts: tuple[Account, ...] = always(())
    last_failure: Failure | None = None
    excluded_nodes: tuple[ExcludedNode, ...] = ()
    slot_backoffs: tuple[SlotBackoff, ...] = internal(())
    omitted: str = ""
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

    @property
    def seen(self) -> bool:
        """Whether an operator has written this status."""
        return self.observed_generation >= 0

    @property
    def end_time(self) -> datetime | None:
        """When the job became Complete or Failed."""
        ends = (c for c in self.conditions if c.type in ("Complete", "Failed") and c.status == "True")
        return next((c.last_transition_time for c in ends), None)

    def stopped(self, wall: datetime) -> JobStatus:
        """The status with the time since ``start_time`` counted as active."""
        if self.start_time is None:
            return self
        passed = max(0, int((wall - self.start_time).total_seconds()))
        return replace(self, active_seconds=(self.active_seconds or 0) + passed)

    def members(self) -> tuple[ParticipantStatus, ...]:
        """The members of the current round (also of one that is over), in rank order."""
        return self._members

    # Asked for each pod in each pass: without a memory a pass is quadratic in the size of the job.

    @cached_property
    def _members(self) -> tuple[ParticipantStatus, ...]:
        return tuple(
            sorted(
                (p for p in self.participants if p.group_rank is not None), key=lambda p: p.group_rank or 0
            )
        )

    @cached_property
    def member_ids(self) -> frozenset[str]:
        """The ids of the members."""
        return frozenset(m.id for m in self._members)

    @cached_property
    def member_uids(self) -> frozenset[str]:
        """The UIDs of the members' pods."""
        return frozenset(m.pod_uid for m in self._members)

    @cached_property
    def lost_pod_uids(self) -> frozenset[str]:
        """The UIDs of the pods of the members whose loss is established."""
        return frozenset(m.pod_uid for m in self._members if m.state == MemberState.LOST)


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
            result.append(
                replace(condition, last_transition_time=old.last_transition_time if same else second)
            )
        else:
            result.append(old)
    if not found:
        result.append(replace(condition, last_transition_time=second))
    return tuple(result)
