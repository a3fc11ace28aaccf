"""What ``status``, ``why`` and ``list`` say of a run without an operator, as its Leases have it, in the words
of an ElasticJob's.

Pure. Pods have written the Leases: a participant's that cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from elasticjob.contract import names
from elasticjob.contract.fields import RecordError
from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.contract.text import counted, in_a_row
from elasticjob.peers.forming import DELETE_ENDED
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.run import PEER_ANNOTATION, RUN_LABEL, STATE_ANNOTATION, round_lease
from elasticjob.peers.settled import Settled
from elasticjob.rounds.causes import ESTABLISHING
from elasticjob.rounds.state import Member, MemberState
from elasticjob_client.explain.lease_progress import last_step_time
from elasticjob_client.explain.listing import JobRow
from elasticjob_client.explain.status import JobStatus, PodRow
from elasticjob_client.explain.times import duration
from elasticjob_client.explain.why import Story
from elasticjob_client.resource import CurrentRound, Progress

GONE = "Gone"
"""The role of a member whose pod has gone, and its Lease with it."""
ENDED = (MemberState.SUCCEEDED, MemberState.LOST)
"""The states of members that say more than that the pod has gone."""
SILENT_SECONDS = 600
"""A member of a running round renews its Lease every minute. The rest is for clocks that disagree."""
NO_PODS = "WaitingForPods"
"""The state of a run that is not over and has no pods. Its round Lease may still have a round that runs."""
NETWORK = (
    "the pods have to reach each other on all TCP ports: see that no NetworkPolicy forbids it "
    "(docs/use/without-an-operator.md)"
)
"""What to do about rounds whose members do not meet."""
UNREADABLE = "Unreadable"
"""The state of a run whose round Lease cannot be read."""

RIGHT = (
    "It takes the right to list Leases (coordination.k8s.io), which the ClusterRole edit has and view has "
    "not (docs/use/without-an-operator.md)."
)
"""What reading a run takes."""


class LeaseOf(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease, as far as it is used."""

    name: str
    namespace: str = ""
    holder: str = ""
    annotations: Mapping[str, str] = {}
    created: datetime | None = None
    renewed: datetime | None = None


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A participant of the run, from its Lease."""

    lease: LeaseOf
    slot: int | None
    record: ParticipantRecord


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``lease`` is the round Lease. ``settled`` and ``record`` are what stands in it; None if it cannot be
    read, and ``unreadable`` says why."""

    name: str
    lease: LeaseOf
    peers: Sequence[Peer] = ()
    present: Mapping[str, str] = {}
    """The pods' UIDs by name, of the Leases of all pods, also of those that cannot be read."""
    settled: Settled | None = None
    record: RoundRecord | None = None
    unreadable: str = ""
    silent_seconds: float = 0
    """For how long no member of the present round, or of the last, has renewed its Lease; 0: not known."""

    @property
    def leader(self) -> Peer | None:
        """The leader of the present round, or of the last; None if its Lease is not there."""
        member = self.settled.state.leader if self.settled is not None else None
        found = [peer for peer in self.peers if member is not None and peer.lease.name == member.name]
        return found[0] if found else None

    @property
    def members_there(self) -> int:
        """How many members of the present round, or of the last, have a Lease."""
        members = self.settled.state.members if self.settled is not None else ()
        return sum(not self.is_gone(m) for m in members)

    def is_gone(self, member: Member) -> bool:
        """Whether this incarnation of a member has no Lease: that goes with its pod."""
        return self.present.get(member.name) != member.key

    @property
    def established(self) -> bool:
        """Whether the members of the present round have met. Its leader says so in its own Lease; the round
        Lease has it only if the coordinator has written again for another reason."""
        if self.settled is None or self.settled.state.established is not None:
            return self.settled is not None
        text = self.leader.lease.annotations.get(names.REPORT_ANNOTATION, "") if self.leader else ""
        try:
            report = RoundReport.parse(text)
        except RecordError:
            return False
        return report.established and report.nonce == self.settled.state.nonce

    @property
    def standstill(self) -> str:
        """Why a round that should run waits for a person; "" if it does not. If no coordinator is left to say
        so, the Leases of members show it: failed pods that are kept have theirs."""
        if self.settled is None or not self.settled.state.active:
            return ""
        if self.record is not None and self.record.waiting_message:
            return self.record.waiting_message
        if self.silent_seconds < SILENT_SECONDS:
            return ""
        return (
            f"round {self.settled.state.number} should run, but no member has renewed its Lease for "
            f"{duration(self.silent_seconds)}. If its pods have ended, delete them: "
            f"kubectl -n {self.lease.namespace} get pods -l {RUN_LABEL}={self.name}"
        )

    @property
    def state(self) -> str:
        """The reason that the condition Training of an ElasticJob would have."""
        if self.settled is None:
            return UNREADABLE
        if self.settled.closed:
            return self.settled.outcome
        if not self.peers and not self.members_there:
            return NO_PODS
        if self.standstill or (self.record is not None and DELETE_ENDED in self.record.waiting_message):
            return "WaitingForFencing"
        if not self.settled.state.active or not self.members_there:
            return "FormingRound"
        return "Training" if self.established else "Establishing"


def hidden(name: str, reason: str) -> str:
    """What is said where Leases may not be listed, and there is no ElasticJob."""
    return f"no ElasticJob {name} can be read, and a run without an operator cannot be seen: {reason}"


def hidden_too(missing: str, reason: str) -> str:
    """What is said where neither ElasticJobs nor Leases may be read; ``missing`` says the former."""
    return f"{missing} A run without an operator cannot be seen either: {reason}"


def nothing_but(name: str, namespace: str, reason: str) -> str:
    """What is said where no run has this name, and ElasticJobs may not be read."""
    return (
        f"there is no run {name} without an operator in namespace {namespace}, and whether there is an "
        f"ElasticJob {name} cannot be seen: {reason}"
    )


def runs(leases: Sequence[LeaseOf], now: datetime | None = None) -> list[Run]:
    """The runs among these Leases, by namespace and name. Without ``now`` nothing is said of silence."""
    ending = round_lease("")
    found = [
        _run(lease, leases, now) for lease in leases if lease.name.endswith(ending) and lease.name != ending
    ]
    return sorted(found, key=lambda run: (run.lease.namespace, run.name))


def status(run: Run, now: datetime) -> JobStatus:
    """As ``status.status`` of an ElasticJob."""
    settled, created = run.settled, run.lease.created
    r = settled.state if settled is not None else None
    progress, age = _progress(run, now)
    return JobStatus(
        name=run.name,
        namespace=run.lease.namespace,
        state=run.state,
        message=_message(run),
        replicas=settled.maximum if settled is not None else None,
        minimum=settled.minimum if settled is not None else None,
        age_seconds=int((now - created).total_seconds()) if created else None,
        current_round=CurrentRound(
            number=r.number,
            phase=r.phase,
            members=len(r.members) if r.active and run.members_there else 0,
            leader_pod_name=r.leader.name if r.leader is not None else "",
            start_time=r.start,
            cause=r.cause,
            message=settled.message if settled is not None else "",
        )
        if r is not None and r.number
        else None,
        progress=progress,
        progress_age_seconds=age,
        pods=_pods(run),
        next=_next(run),
    )


def row(run: Run, now: datetime) -> JobRow:
    """As ``listing.row`` of an ElasticJob."""
    found = status(run, now)
    return JobRow(
        namespace=found.namespace,
        name=found.name,
        state=found.state,
        members=found.current_round.members if found.current_round else 0,
        replicas=found.replicas,
        round=found.current_round.number if found.current_round else 0,
        step=found.progress.step if found.progress else None,
        step_age_seconds=found.progress_age_seconds,
        age_seconds=found.age_seconds,
    )


def why(run: Run) -> Story:
    """What ended the last round, and what the next one waits for. The Leases keep no history: of the rounds
    before, the pods' logs tell."""
    settled = run.settled
    sentences = [run.unreadable] if settled is None else []
    if settled is not None:
        r, there = settled.state, bool(run.members_there)
        if settled.closed:
            sentences.append(f"The run is {settled.outcome}: {settled.message}")
        elif r.active and settled.message:
            sentences += [f"Round {r.number} runs with {counted(len(r.members), 'member')}."] * there
            sentences.append(f"The last round that ended: {settled.message}")
        elif r.cause:
            sentences.append(f"Round {r.number} ended ({r.cause}): {settled.message}")
        if settled.early_ends > 1:
            sentences.append(f"{in_a_row(settled.early_ends, 'round')} ended early, without progress.")
        if run.state == NO_PODS:
            sentences.append(f"It waits: {_no_pods(run)}")
        elif run.standstill:
            sentences.append(f"It waits: {run.standstill}")
        elif run.record is not None and run.record.waiting_message and not settled.closed:
            sentences.append(f"The next round waits: {run.record.waiting_message}")
    return Story(
        name=run.name,
        namespace=run.lease.namespace,
        sentences=sentences or [f"No round of {run.name} has ended."],
        next=_next(run),
    )


def _run(lease: LeaseOf, leases: Sequence[LeaseOf], now: datetime | None) -> Run:
    name, a = lease.name.removesuffix(round_lease("")), lease.annotations
    text = a.get(names.ROUND_ANNOTATION, "")
    try:
        settled, record = Settled.parse(text, a.get(STATE_ANNOTATION, "")), RoundRecord.parse(text)
    except RecordError as error:
        return Run(name=name, lease=lease, unreadable=f"Lease {lease.name} cannot be read: {error}")
    mine = [other for other in leases if other.namespace == lease.namespace]
    return Run(
        name=name,
        lease=lease,
        peers=list(_peers(mine, settled.run)),
        present={other.name: other.holder for other in mine},
        settled=settled,
        record=record,
        silent_seconds=_silence(mine, settled, now),
    )


def _silence(leases: Sequence[LeaseOf], settled: Settled, now: datetime | None) -> float:
    members = {(m.name, m.key) for m in settled.state.members if m.state == MemberState.MEMBER}
    times = [lease.renewed for lease in leases if lease.renewed and (lease.name, lease.holder) in members]
    return max(0.0, (now - max(times)).total_seconds()) if now is not None and times else 0.0


def _peers(leases: Sequence[LeaseOf], run: str) -> Iterator[Peer]:
    for lease in leases:
        try:
            peer = PeerRecord.parse(lease.annotations.get(PEER_ANNOTATION, ""))
            record = ParticipantRecord.parse(lease.annotations.get(names.PARTICIPANT_ANNOTATION, ""))
        except RecordError:
            continue
        if peer.run == run and not peer.is_copied_to(lease.name):
            yield Peer(lease=lease, slot=peer.slot, record=record)


def _message(run: Run) -> str:
    settled, record = run.settled, run.record
    if settled is None or record is None:
        return run.unreadable
    if settled.closed:
        return settled.message
    r = settled.state
    coordinator = run.lease.holder.partition("_")[0]
    led = f", coordinator {coordinator}" if coordinator else ", without a coordinator"
    if run.state == NO_PODS:
        return _no_pods(run)
    if run.standstill:
        return run.standstill
    if r.active and r.leader is not None and run.members_there:
        return f"round {r.number} with {counted(len(r.members), 'member')}, leader {r.leader.name}{led}"
    if r.active:
        there = counted(len(run.peers), "pod")
        return f"no member of round {r.number} is there any more, and {there} for the next{led}"
    return record.waiting_message or f"{counted(len(run.peers), 'pod')} there{led}"


def _no_pods(run: Run) -> str:
    settled = run.settled
    assert settled is not None
    after = f" after round {settled.state.number}" if settled.state.number else ""
    return (
        f"no pod of run {settled.run} is there. It goes on{after} when pods with this --rdzv-id come. "
        f"If none will come, delete Lease {run.lease.name}"
    )


def _pods(run: Run) -> list[PodRow]:
    """The members by rank, then the others."""
    members = run.settled.state.members if run.settled is not None else ()
    by_name = {peer.lease.name: peer for peer in run.peers}
    rows = [
        PodRow(
            pod=m.name,
            rank=m.group_rank,
            slot=by_name[m.name].slot if m.name in by_name else None,
            role=GONE if run.is_gone(m) and m.state not in ENDED else m.state,
            processes=by_name[m.name].record.local_world_size if m.name in by_name else None,
            message=m.message,
        )
        for m in members
    ]
    known = {row.pod for row in rows}
    active = run.settled is not None and run.settled.state.active
    for name, peer in sorted(by_name.items()):
        if name not in known:
            role = peer.record.state
            if role == AnnouncedState.JOINING and active:
                role = "Standby"
            rows.append(PodRow(pod=name, slot=peer.slot, role=role, processes=peer.record.local_world_size))
    return rows


def _progress(run: Run, now: datetime) -> tuple[Progress | None, int | None]:
    """What the leader has reported of the present round, and how many seconds ago its last step was. That is
    counted from the round's start, some seconds before its members had met: no Lease says when they did. What
    the round Lease has as ``established`` is when a coordinator took note of it, perhaps a later one."""
    r, leader = run.settled.state if run.settled is not None else None, run.leader
    if r is None or leader is None:
        return None, None
    try:
        report = ProgressReport.parse(leader.lease.annotations.get(names.PROGRESS_ANNOTATION, ""))
    except RecordError:
        return None, None
    if report.nonce != r.nonce:
        return None, None
    steps = report.step - report.first_step
    speed = round(report.training_milliseconds / steps) if steps > 0 else None
    last = last_step_time(r.start, report)
    age = max(0, int((now - last).total_seconds())) if last else None
    return Progress(step=report.step, last_report_time=last, milliseconds_per_step=speed), age


def _next(run: Run) -> list[str]:
    if run.settled is not None and run.settled.state.cause in ESTABLISHING and not run.established:
        return [*_steps(run), NETWORK]
    return _steps(run)


def _steps(run: Run) -> list[str]:
    if run.state in ("Failed", "Complete"):
        return ["a run that has ended stays ended: start the next one with another --rdzv-id"]
    if run.state == UNREADABLE:
        return [f"delete Lease {run.lease.name}: the pods make it again"]
    return []
