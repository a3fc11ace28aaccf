"""One pass: its inputs, the next status, and what is to be done."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import Phase
from elasticjob.rounds.state import MemberState
from elasticjob.rounds.waits import Waits
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import (
    WAIT_RENEW_SECONDS,
    Action,
    Event,
    Job,
    Now,
    Observed,
    Participant,
    Pod,
)
from elasticjob_operator.plan.state.status import (
    JobStatus,
    ParticipantStatus,
    RoundEnd,
    RoundStatus,
)

T = TypeVar("T")

RENEWALS_PER_SECOND = 50
"""The load that all waiting participants together put on the API server."""

NODE_GONE_SECONDS = 2.0
"""How long a node must stay deleted: a watch that lags reports its return late."""


@dataclass
class Pass:
    """What the rules of one pass share; what else a rule finds out is its return value (``outlook``).

    The first five fields never change: the job, its status as it was read, what was observed, and the clocks.
    """

    job: Job
    before: JobStatus
    observed: Observed
    now: Now
    waits: Waits
    status: JobStatus
    """The next status: each rule reads what those before it wrote."""
    actions: list[Action] = field(default_factory=list)
    """What has to be done. Only added to, as the three that follow."""
    events: list[Event] = field(default_factory=list)
    judged_silent: set[str] = field(default_factory=set)
    """Pods against which it was used that their Leases have not been renewed."""
    judged_unheard: set[str] = field(default_factory=set)
    """Pods that this pass judges by what has not been heard of them."""
    held: frozenset[str] = frozenset()
    """Pods (by UID) that are replaced or being deleted, and whose workers the running round still needs. The
    planner sets it once, before losses are judged: a member that is kept is a witness, too."""

    def __post_init__(self) -> None:
        self.pods_by_uid: dict[str, Pod] = {p.uid: p for p in self.observed.pods if p.of_this_job}
        self.pods_by_name: dict[str, Pod] = {p.name: p for p in self.observed.pods}
        self._on_deleted_nodes: set[str] = {
            pod.uid
            for pod in self.observed.pods
            if pod.node_gone and self.waits.left(JobWait.NODE_GONE, pod.uid, NODE_GONE_SECONDS) == 0
        }
        self._made: dict[str, tuple[tuple[object, ...], Any]] = {}
        self._alive: set[str] | None = None
        self._alive_for: tuple[object, object] = ((), ())
        self._leaving: set[str] = {
            pod.uid
            for pod in self.observed.pods
            if (lease := self.participant(pod)) is not None
            and lease.record is not None
            and lease.record.state == AnnouncedState.LEAVING.value
        }

    @property
    def round(self) -> RoundStatus:
        """The round as this pass has it."""
        return self.status.current_round

    @property
    def record_is_current(self) -> bool:
        """Whether the round Lease says what the status says of the round. While it can't be written, no
        member is judged by what it could not read."""
        record = self.observed.record
        return record is not None and (record.number, record.phase) == (
            self.round.number,
            self.round.published_phase,
        )

    def set(self, **changes: Any) -> None:
        """Change the status. Most passes change next to nothing, and a copy has thirty fields."""
        if _differs(self.status, changes):
            self.status = replace(self.status, **changes)

    def set_round(self, **changes: Any) -> None:
        """Change the round in the status."""
        if _differs(self.round, changes):
            self.status = replace(self.status, current_round=replace(self.round, **changes))

    def set_end(self, **changes: Any) -> None:
        """Change why the round has ended, in the history, too."""
        self.set_round(end=replace(self.round.end or RoundEnd(), **changes))
        history = self.status.round_history
        if history and history[0].number == self.round.number:
            self.set(round_history=(replace(history[0], end=self.round.end), *history[1:]))

    def once(self, what: str, make: Callable[[], T], *of: object) -> T:
        """What ``make`` returns; made again when one of the objects that it is made ``of`` has changed."""
        known = self._made.get(what)
        if known is None or known[0] != of:
            known = self._made[what] = (of, make())
        made: T = known[1]
        return made

    def left_since(self, since: datetime, limit: float, kind: enum.Enum, about: str | int) -> float:
        """Seconds until ``limit`` has passed since a time in the status; schedules a pass for then.

        Restarts and gaps do not start it again. This operator's own clock counts, too, for a wall clock
        that was set back.
        """
        return self.waits.left(kind, about, limit, (self.now.wall - since).total_seconds())

    def event(
        self,
        reason: str,
        message: str,
        warning: bool = False,
        frequent: bool = False,
        *,
        pod: str = "",
        cause: str = "",
    ) -> None:
        """Send an Event, for people."""
        self.events.append(Event(reason, message, warning, frequent, pod, cause))

    def participant(self, pod: Pod) -> Participant | None:
        """The pod's Lease, if it is held by this very pod."""
        lease = self.observed.leases.get(pod.name)
        return lease if lease is not None and lease.holder == pod.uid else None

    def last_seen(self, uid: str) -> Pod | None:
        """The pod with this UID, or what is known of it if it is gone."""
        return self.pods_by_uid.get(uid) or self.observed.removed.get(uid)

    def lease_of(self, uid: str) -> Participant | None:
        """The Lease of the pod with this UID, if it is there and held by it."""
        pod = self.pods_by_uid.get(uid)
        return self.participant(pod) if pod is not None else None

    def report_of(self, uid: str) -> RoundReport | None:
        """What the pod with this UID says of the current round."""
        lease = self.lease_of(uid)
        report = lease.report if lease is not None else None
        return report if report is not None and report.nonce == self.round.nonce else None

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """Let the next attempt take the slot of each of these pods."""
        self.use_up((pod.slot, pod.attempt) for pod in pods if pod.slot is not None)

    def use_up(self, places: Iterable[tuple[int, int]]) -> None:
        """Let the next pod of each slot have an attempt later than this one."""
        attempts = list(self.status.attempts)
        for slot, attempt in places:
            if slot < len(attempts):
                attempts[slot] = max(attempts[slot], attempt + 1)
        self.set(attempts=tuple(attempts))

    def is_of_round(self, number: int) -> bool:
        """Whether a member that names this number means the round. One that ended because a Lease was ahead
        has got another number; its members know it by the former one, or by that in the Lease."""
        formed = self.status.round_history[0].number if self.status.round_history else self.round.number
        return formed <= number <= self.round.number

    def number_when_formed(self, number: int) -> int:
        """The number by which its members know a round that ended because a Lease was ahead, and was given
        this one; that of any other round is its own."""
        return max((h.number for h in self.status.round_history if h.number <= number), default=number)

    def set_members(self, members: tuple[ParticipantStatus, ...]) -> None:
        """Replace the members in the status; the others follow them."""
        others = tuple(p for p in self.status.participants if p.group_rank is None)
        self.set(participants=members + others)

    def mark_lost(self, messages: Mapping[str, str]) -> None:
        """The members of these pods (by UID) are lost, each with its message."""
        if messages:
            self.set_members(
                tuple(
                    replace(m, state=MemberState.LOST, message=messages[m.pod_uid])
                    if m.pod_uid in messages
                    else m
                    for m in self.status.members()
                )
            )

    def waiting_participants(self) -> int:
        """How many have announced themselves and are in no round. Pods that do not run renew nothing, and
        anyone can create them at no cost: all jobs' renewals go by this."""
        members = self.status.member_ids
        return sum(r.state == AnnouncedState.JOINING.value and r.id not in members for r in self._running())

    def _about_to_wait(self) -> int:
        """How many members of a round that has ended have still to announce themselves."""
        if self.round.phase != Phase.BROKEN.value:
            return 0
        return sum(r.id in self.status.member_ids for r in self._running())

    def _running(self) -> Iterator[ParticipantRecord]:
        """What running pods say of themselves."""
        for pod in self.observed.pods:
            lease = self.participant(pod) if pod.running else None
            if lease is not None and lease.record is not None:
                yield lease.record

    def wait_renew(self) -> int:
        """Seconds between two renewals of a waiting participant's Lease, so that those of all jobs are 50 a
        second at most. In steps, since a change wakes a whole job: the first member of a large round that
        has ended reads the value that will hold when all wait."""
        waiting = self.observed.waiting + self._about_to_wait()
        seconds = WAIT_RENEW_SECONDS
        while seconds * RENEWALS_PER_SECOND < waiting:
            seconds *= 2
        return seconds

    def joined(self) -> tuple[tuple[Pod, ParticipantStatus], ...]:
        """Live pods whose Lease says Joining, for the next round: with an id that no round has used.

        These are the only ones that may become members (I4): fresh, running, on a ready node, not on
        their way out, and of the newest attempt of their slot. Of several with one id the first: a record
        in which an id stands twice would be refused by all members.
        """
        state = "Standby" if self.round.phase == "Active" else "Joining"
        taken: set[str] = set()
        result = []
        for pod, record in self._announced():
            if record.id not in taken:
                taken.add(record.id)
                entry = ParticipantStatus(
                    id=record.id,
                    pod_name=pod.name,
                    pod_uid=pod.uid,
                    state=state,
                    slot=pod.slot,
                    node_name=pod.node,
                    local_world_size=record.local_world_size,
                    container_restarts=pod.restarts,
                )
                result.append((pod, entry))
        return tuple(result)

    def duplicate_ids(self) -> dict[str, str]:
        """Pods that have announced themselves with an id that another pod has, each with that pod."""
        first: dict[str, str] = {}
        pairs = [(pod.name, first.setdefault(record.id, pod.name)) for pod, record in self._announced()]
        return {name: other for name, other in pairs if name != other}

    def _announced(self) -> list[tuple[Pod, ParticipantRecord]]:
        """Pods that may become members, each with what it says of itself."""
        status = self.status
        made_of = status.attempts, status.participants, status.current_round
        return self.once("announced", lambda: list(self._find_announced()), *made_of)

    def _find_announced(self) -> Iterator[tuple[Pod, ParticipantRecord]]:
        for pod in self.observed.pods:
            lease = self.participant(pod) if self.alive(pod) else None
            record = lease.record if lease is not None else None
            if record is None or record.state != AnnouncedState.JOINING.value:
                continue
            if self.silent_announcement(pod) is not None or not self.in_time(record):
                continue
            if not pod.running or not pod.node_ready or pod.unreachable:
                continue
            if record.id in self.status.member_ids:
                continue
            if self.round.phase == "Active" and pod.uid in self.status.member_uids:
                continue  # it has succeeded, and started torchrun again: it is no newcomer
            yield pod, record

    def in_time(self, record: ParticipantRecord) -> bool:
        """Whether an announcement is for the round after this one. One from before may have been a member's
        since, also of a round of which nothing is known any more (I4); a live agent makes another."""
        return record.seen(self.job.uid) >= self.round.number

    def has_ended_well(self, member: ParticipantStatus) -> bool:
        """Whether it has succeeded, or its container has ended with 0."""
        pod = self.pods_by_uid.get(member.pod_uid)
        return member.succeeded or (pod is not None and pod.exited_well)

    def _has_done_its_part(self, member: ParticipantStatus) -> bool:
        """Whether it has succeeded, or its container has ended with 0 and its pod may still say why."""
        pod = self.pods_by_uid.get(member.pod_uid)
        well = pod is not None and pod.exited_well
        return member.succeeded or (well and pod is not None and not pod.ended and not pod.deleting)

    def silent_announcement(self, pod: Pod) -> float | None:
        """Seconds since a live pod that has announced itself last renewed its Lease; None below three
        intervals."""
        lease = self.participant(pod) if self.alive(pod) else None
        if lease is None or lease.record is None or lease.record.state != AnnouncedState.JOINING.value:
            return None
        if lease.record.id in self.status.member_ids:
            return None
        return lease.silent if self.is_silent(lease) else None

    def is_silent(self, lease: Participant) -> bool:
        """Whether one that waits has not renewed its Lease for three intervals: a judgement, which is
        checked."""
        silent = lease.silent > 3 * self.observed.renew_seconds
        if silent:
            self.judged_silent.add(lease.pod)
        return silent

    def alive(self, pod: Pod) -> bool:
        """Whether the pod counts for its slot: of this job, not ended, not on its way out, not marked lost,
        and not on a node that is gone for good."""
        known = (self.status.attempts, self.status.participants)
        if self._alive is None or self._alive_for[0] is not known[0] or self._alive_for[1] is not known[1]:
            # Asked a dozen times for each pod in each pass.
            self._alive_for = known
            self._alive = {one.uid for one in self.observed.pods if self._counts(one)}
        return pod.uid in self._alive

    def _counts(self, pod: Pod) -> bool:
        if not pod.of_this_job or pod.ended or pod.exit is not None or pod.deleting:
            return False
        if self.is_replaced(pod) or self.leaving(pod) or self.on_dead_node(pod):
            return False
        return self.job.spec.template is None or pod.uid not in self.status.lost_pod_uids

    def leaving(self, pod: Pod) -> bool:
        """Whether the pod's agent has said that it ends without having succeeded."""
        return pod.uid in self._leaving

    def on_dead_node(self, pod: Pod) -> bool:
        """Whether the pod's node is gone for good: its object has been deleted, or it was declared out of
        service while its kubelet is silent."""
        if pod.node_gone:
            return pod.uid in self._on_deleted_nodes
        return pod.out_of_service and not pod.node_ready

    def is_replaced(self, pod: Pod) -> bool:
        """Whether a later attempt has taken this pod's slot."""
        if self.job.spec.template is None or pod.slot is None or pod.slot >= len(self.status.attempts):
            return False
        return pod.attempt < self.status.attempts[pod.slot]

    def beyond_quota(self) -> int:
        """How many pods live for which the job's queue gives no quota any more; those that are lost, or that
        a later pod has replaced, are on their way out already."""
        if self.job.grant is None:
            return 0
        lost = self.status.lost_pod_uids
        live = sum(
            not (pod.ended or pod.deleting or pod.uid in lost or self.is_replaced(pod))
            for pod in self.pods_by_uid.values()
        )
        return max(0, live - self.job.grant.quota)

    def missing_slots(self) -> list[int]:
        """The lowest slots without a live pod, as many as ``replicas`` and ``spares`` lack. A member that has
        succeeded in this running round needs none."""
        held = {pod.slot for pod in self.observed.pods if self.alive(pod) and pod.slot is not None}
        if self.round.phase == "Active":
            held |= {
                m.slot for m in self.status.members() if self._has_done_its_part(m) and m.slot is not None
            }
        lacking = self.job.spec.pods - len(held)
        free = (slot for slot in range(self.job.spec.pods + len(held)) if slot not in held)
        return [next(free) for _ in range(max(0, lacking))]


def _differs(there: object, changes: Mapping[str, Any]) -> bool:
    return any(getattr(there, name) != value for name, value in changes.items())
