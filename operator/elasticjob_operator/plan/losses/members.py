"""What is known of each member of the round, and the evidence against it.

A member is in one of these states (``status.participants[].state``):

* Member: nothing speaks against it.
* Succeeded: its workers have finished this round. Completed: its container has ended with 0, too. Where
  the operator creates the pods, a member that is lost before it is Completed is lost like any other.
* Left: it has left the round and is alive: it has announced itself again, or is shutting down.
* Unreachable: the leader, or most members, report it silent; it may still come back by itself.
* Lost: it will not come back; its pod is replaced.

Lost and Unreachable stay: the witness may be gone at the next pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.text import node_words
from elasticjob.rounds.causes import PLANNED, Cause
from elasticjob.rounds.judgement import judge
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.losses import failure_reports, kernel, pod_ends, unheard, witnesses
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Participant, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import COMPLETED, ParticipantStatus

ENDED_WELL_SECONDS = 2.0
"""How long a sign may still come that a container was asked to end which has ended with 0 and not reported
its success, while its pod has not ended (sidecars run on, or its kubelet has more to say)."""

STARTED_AGAIN = "its command has started torchrun again"
"""The message of a member that has left for no failure, after the round had succeeded."""

MAX_MEMBER_MESSAGE = 200
"""Characters that stand with each member: a thousand workers' messages would not fit into the status."""


class Verdict(NamedTuple):
    """The state of a member, and the evidence against the round; ``message`` is for a state without any."""

    state: str
    evidence: Evidence | None = None
    message: str = ""


def examine(p: Pass) -> list[Evidence]:
    """Bring the members' states up to date; return the evidence against the round, if any."""
    evidence: list[Evidence] = []
    members = []
    others_have_finished = cache(lambda: _others_have_finished(p))
    for member in p.status.members():
        state, found, message = _verdict(_Case(p, member, others_have_finished))
        if found is not None:
            evidence.append(found)
            message = found.message[:MAX_MEMBER_MESSAGE]
        message = message or member.message
        same = (state, message) == (member.state, member.message)
        members.append(member if same else replace(member, state=state, message=message))
    p.set_members(tuple(members))
    evidence += _lost_with_the_leader(p)
    failed = failure_reports.worker_failures(p)
    reported = {e.pod_uid for e in failed}
    # A container that ended because its worker did is that worker's failure, and perhaps an echo.
    evidence = [e for e in evidence if e.cause != Cause.POD_FAILED or e.pod_uid not in reported] + failed
    with kernel.round_view(p) as view:
        findings = judge(view, bool(evidence))
    return evidence + kernel.as_evidence(findings)


def fencing_satisfied(p: Pass) -> bool:
    """Whether one member of the last round at least can be shown to have left it (fencing).

    One is enough where training needs all of them. Without members there is nothing to fence.
    """
    members = p.status.members()
    if not members:
        return True
    for member in members:
        pod = p.pods_by_uid.get(member.pod_uid)
        if pod is None or pod.exit is not None or pod.ended or p.on_dead_node(pod):
            return True
        lease = p.participant(pod)
        record = lease.record if lease is not None else None
        if record is not None and record.id != member.id:
            return True  # also one that was marked lost, and has announced itself again
        if record is None and member.state == MemberState.LEFT:
            return True
    return False


class _Case:
    """What there is to judge one member by: its pod and its Lease."""

    def __init__(self, p: Pass, member: ParticipantStatus, others_have_finished: Callable[[], bool]) -> None:
        self.p = p
        self.member = member
        self.others_have_finished = others_have_finished
        self.own = p.job.spec.template is not None
        """Whether the operator creates the pods."""
        self.over = p.round.phase != "Active"
        self.there = p.pods_by_uid.get(member.pod_uid)
        self.lease = p.participant(self.there) if self.there is not None else None
        self.record = self.lease.record if self.lease is not None else None
        self.left = self.record is not None and self.record.id != member.id
        """It has announced itself again, or another torchrun in its container has."""
        self.leaving = self.there is not None and p.leaving(self.there) and not self.left

    @property
    def who(self) -> str:
        """The member, in a sentence."""
        return f"{self.member.pod_name} (group rank {self.member.group_rank})"

    @property
    def pod(self) -> Pod:
        """Its pod, where that is known to be there."""
        assert self.there is not None
        return self.there

    @property
    def joins(self) -> bool:
        """Whether it announces itself for a round."""
        return self.record is not None and self.record.state == AnnouncedState.JOINING.value

    @property
    def as_before(self) -> Verdict:
        """Nothing new."""
        return Verdict(self.member.state)

    @property
    def done(self) -> Verdict:
        """It has done its part."""
        return Verdict(_state_when_done(self.p, self.own, self.over))

    @property
    def disruption(self) -> Evidence | None:
        """What takes its pod away."""
        return pod_ends.disruption_of(self.p, self.pod, self.who, self.member.group_rank)

    @property
    def explained(self) -> Evidence:
        """Why its container has ended."""
        return pod_ends.explain(self.p, self.pod, self.who, self.member.group_rank)

    @property
    def node_lost(self) -> Evidence:
        """Evidence that its node is lost."""
        return pod_ends.node_lost(self.p, self.pod, self.who, self.member.group_rank)

    @property
    def may_be_explained(self) -> bool:
        """Whether it is still open why a container has ended with 0: a process that is asked to stop may end
        with 0, too. The pod says what stopped it when all of it has ended."""
        there = not self.pod.ended and not self.pod.deleting
        return there and self.p.waits.left(JobWait.EXIT_EXPLAINED, self.pod.uid, ENDED_WELL_SECONDS) > 0

    def evidence(self, cause: str, message: str) -> Evidence:
        """Evidence on this member."""
        m = self.member
        return Evidence(cause, message, m.pod_name, m.group_rank, pod_uid=m.pod_uid, node_name=m.node_name)


def _verdict(case: _Case) -> Verdict:
    """The first verdict that applies."""
    for rule in _VERDICTS:
        found = rule(case)
        if found is not None:
            return found
    return case.as_before


def _lost_stays_lost(case: _Case) -> Verdict | None:
    """Its pod may still explain the loss; not that of a member that had succeeded, which has no message."""
    if case.member.state != MemberState.LOST:
        return None
    if case.there is None or not case.member.message:
        return Verdict(MemberState.LOST)
    cause = case.p.round.next_cause.cause
    found = pod_ends.later_evidence(case.p, case.there, case.who, cause, case.member.group_rank)
    return Verdict(MemberState.LOST, found)


def _done_stays_done(case: _Case) -> Verdict | None:
    """What it has done stays done, even if its pod is lost; but not for another round."""
    p, member = case.p, case.member
    if member.completed:
        return case.done
    if member.state != MemberState.SUCCEEDED:
        return None
    again = p.round.next_cause.cause == Cause.STARTED_AGAIN and started_again(p, member)
    return None if case.own and (not case.over or again) else case.done


def _pod_is_gone(case: _Case) -> Verdict | None:
    return Verdict(MemberState.LOST, _vanished(case)) if case.there is None else None


def _has_succeeded(case: _Case) -> Verdict | None:
    return _after_success(case) if case.member.state == MemberState.SUCCEEDED else None


def _says_that_it_succeeded(case: _Case) -> Verdict | None:
    if case.left or case.record is None or case.record.state != AnnouncedState.SUCCEEDED.value:
        return None
    return _after_success(case) if case.own and not case.over else case.done


def _container_has_ended(case: _Case) -> Verdict | None:
    """It ended well, or for a reason that may come later. Where it was asked to stop, its exit code is an
    echo."""
    pod = case.pod
    if pod.exit is None and not pod.ended:
        return None
    if pod.exited_well and not case.left and not case.leaving:
        if case.may_be_explained:
            return case.as_before
        if case.disruption is None:
            return case.done
    found = case.explained
    if case.leaving and found.cause in (Cause.POD_FAILED, Cause.POD_LOST):
        how = f"its {pod_ends.describe_end(pod, pod.exit)}" if pod.exit is not None else "its pod failed"
        text = f"{case.who} left: its torchrun was shutting down; {how}"
        found = case.evidence(Cause.MEMBER_LEFT, text)
    return Verdict(MemberState.LOST, found)


def _pod_is_being_deleted(case: _Case) -> Verdict | None:
    going = case.pod.deleting and case.pod.uid not in case.p.held
    return Verdict(MemberState.LOST, case.disruption) if going else None


def _node_is_lost(case: _Case) -> Verdict | None:
    """It is gone for certain; or it is not ready, the member is silent, and no other member hears it."""
    p, member, pod = case.p, case.member, case.pod
    lost = p.on_dead_node(pod) or (
        pod_ends.node_problem(p, pod)
        and not witnesses.vouched_for(p, member)
        and witnesses.silent(p, member, case.lease)
    )
    return Verdict(MemberState.LOST, case.node_lost) if lost else None


def _says_nothing_new(case: _Case) -> Verdict | None:
    """It says nothing, or is known to have started torchrun again after the round had succeeded."""
    known = case.member.state == MemberState.LEFT and case.member.message == STARTED_AGAIN
    return case.as_before if case.record is None or (case.left and known) else None


def _has_to_announce_itself_again(case: _Case) -> Verdict | None:
    """The round has got another number since."""
    late = case.record is not None and case.over and case.joins and not case.p.in_time(case.record)
    return Verdict(MemberState.MEMBER) if case.left and late else None


def _was_replaced_in_its_pod(case: _Case) -> Verdict | None:
    """Its Lease has a torchrun that does not come from this round. If all torchruns of the round have ended
    well, this one's success was missed while no operator ran. Containers of the operator's pods are never
    restarted: there it is a second agent."""
    p, member, record = case.p, case.member, case.record
    if not case.left or record is None:
        return None
    if p.is_of_round(record.from_round) and record.from_job_uid == p.job.uid:
        return None
    again = case.own and not case.over and case.joins
    if again and (_has_finished(p, case.lease) or case.others_have_finished()):
        return Verdict(MemberState.SUCCEEDED)
    restarted = case.pod.restarts > member.container_restarts
    killed = failure_reports.killed_for_memory(case.pod, case.who, member.group_rank) if restarted else None
    how = "was replaced by another torchrun in its pod" if case.own else "was restarted in place"
    return Verdict(MemberState.LEFT, killed or case.evidence(Cause.POD_RESTARTED, f"{case.who} {how}"))


def _shuts_down(case: _Case) -> Verdict | None:
    if not case.leaving:
        return None
    text = f"{case.who} left: its torchrun was shutting down"
    return Verdict(MemberState.LEFT, case.evidence(Cause.MEMBER_LEFT, text))


def _has_left(case: _Case) -> Verdict | None:
    """Its own Lease says so, or other members do."""
    left = case.left or (not case.over and unheard.says_left(case.p, case.member.group_rank))
    return Verdict(MemberState.LEFT, _left_round(case)) if left else None


def _is_awaited_again(case: _Case) -> Verdict | None:
    """Others said that it had left; that it announces itself is still awaited."""
    return Verdict(MemberState.MEMBER) if case.over and case.member.state == MemberState.LEFT else None


_VERDICTS: tuple[Callable[[_Case], Verdict | None], ...] = (
    _lost_stays_lost,
    _done_stays_done,
    _pod_is_gone,
    _has_succeeded,
    _says_that_it_succeeded,
    _container_has_ended,
    _pod_is_being_deleted,
    _node_is_lost,
    _says_nothing_new,
    _has_to_announce_itself_again,
    _was_replaced_in_its_pod,
    _shuts_down,
    _has_left,
    _is_awaited_again,
)
"""The first that applies counts; without one a member stays as it is. From the fourth on its pod is there."""


def _state_when_done(p: Pass, operator_owns_pods: bool, round_over: bool) -> str:
    """The state of a member that has done its part. For another round it is lost; but if a planned change
    ended a round of others' pods, perhaps all have done theirs."""
    if not round_over:
        return COMPLETED if operator_owns_pods else MemberState.SUCCEEDED
    planned = p.round.next_cause.cause in PLANNED
    return MemberState.SUCCEEDED if not operator_owns_pods and planned else MemberState.LOST


def _has_finished(p: Pass, lease: Participant | None) -> bool:
    """Whether a torchrun of this pod has finished the round, also if another has its Lease by now."""
    return lease is not None and bool(p.round.nonce) and lease.finished == p.round.nonce


def _others_have_finished(p: Pass) -> bool:
    """Whether no torchrun of this round is left, as far as Leases and pods tell: some have ended well, and in
    all others' containers there is another one. They end well together or not at all."""
    ends_seen = {_how_it_has_finished(p, m) for m in p.status.members()}
    return "well" in ends_seen and "" not in ends_seen


def _how_it_has_finished(p: Pass, member: ParticipantStatus) -> str:
    """``well``, ``again`` where only its successor in the container shows that it has ended, or nothing."""
    pod = p.pods_by_uid.get(member.pod_uid)
    if member.state == MemberState.SUCCEEDED:
        return "well"
    if pod is None or pod.exit is not None:
        return "well" if pod is not None and pod.exited_well else ""
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    if record is None or record.id == member.id:
        return "well" if record is not None and record.state == AnnouncedState.SUCCEEDED.value else ""
    if record.state != AnnouncedState.JOINING.value or record.from_round == p.round.number:
        return ""
    return "well" if _has_finished(p, lease) else "again"


def started_again(p: Pass, member: ParticipantStatus) -> bool:
    """Whether a member that has succeeded announces itself again: its torchrun has ended well, and its
    command goes on with another one."""
    pod = p.pods_by_uid.get(member.pod_uid)
    lease = p.participant(pod) if pod is not None and p.job.spec.template is not None else None
    record = lease.record if lease is not None else None
    again = record is not None and record.id != member.id and record.state == AnnouncedState.JOINING.value
    return member.state == MemberState.SUCCEEDED and again


def _after_success(case: _Case) -> Verdict:
    """The state of a member whose workers have finished, and whose container goes on or has ended.

    What its command does now concerns no other member, and no Lease reports it: a node that is not ready no
    longer counts against it, only what ends it for certain does.
    """
    p, pod = case.p, case.pod
    found: Evidence | None = None
    if pod.last_exit is not None and pod.last_exit.code == 0:
        return Verdict(COMPLETED)  # a webhook has made restartPolicy Always: it would do all of it again
    if pod.exit is not None or pod.ended:
        if pod.exited_well and not p.leaving(pod):
            if case.may_be_explained:
                return Verdict(MemberState.SUCCEEDED)
            if case.disruption is None:
                return Verdict(COMPLETED)
        found = case.explained
        if found.cause == Cause.POD_FAILED and pod.exit is not None and pod.exit.code:
            whose = "all" if all(m.succeeded for m in p.status.members()) else "its"
            how = f"{pod_ends.describe_exit(pod.exit)}{pod_ends.said(pod.exit)}"
            text = f"after {whose} workers had succeeded, the command of {case.who} ended with {how}"
            return Verdict(MemberState.LOST, replace(found, message=text))
    elif pod.deleting:
        found = case.disruption
    elif p.on_dead_node(pod):
        found = case.node_lost
    if found is not None:
        return Verdict(
            MemberState.LOST, replace(found, message=f"{found.message}; its workers had succeeded")
        )
    if p.round.phase == "Active":
        return Verdict(MemberState.SUCCEEDED)
    return Verdict(MemberState.LEFT, message=STARTED_AGAIN)


def _vanished(case: _Case) -> Evidence:
    """The pod is the job's no more.

    The pod's object is gone. What it said last counts where that was seen; the node may say something, too.

    A pod that fails stays. One that is gone from a node that is well was deleted, and the end of its grace
    period came while no operator looked; where another controller creates the pods, it may have removed a
    failed one.
    """
    p, member, who = case.p, case.member, case.who
    there = p.pods_by_name.get(member.pod_name)
    if there is not None and there.uid == member.pod_uid:
        return case.evidence(
            Cause.POD_DELETED,
            f"{who} no longer belongs to the job: its owner reference was changed or removed",
        )
    gone = p.last_seen(member.pod_uid)
    if gone is not None:
        found = pod_ends.final_evidence(p, gone, who, Cause.POD_LOST, member.group_rank)
        if found is not None:
            return found
    if member.node_name and p.observed.nodes is not None and member.node_name not in p.observed.nodes:
        text = f"{who} was lost: its pod is gone, and {node_words(member.node_name)} is gone or not ready"
        return replace(case.evidence(Cause.NODE_LOST, text), reasons=("NodeLost",))
    if p.job.spec.template is not None:
        return case.evidence(Cause.POD_DELETED, f"{who} was lost: its pod was deleted")
    return case.evidence(Cause.POD_LOST, f"{who} was lost: its pod is gone")


def _left_round(case: _Case) -> Evidence:
    """The member has announced itself again: for the failure of a worker, or for no known reason."""
    p, member, who = case.p, case.member, case.who
    report = failure_reports.failure_report(p, member)
    if report is None:
        how = "was stopped with the round" if case.over else "left the round without giving a reason"
        return case.evidence(Cause.MEMBER_LEFT, f"{who} {how}")
    if report.after_round_end:
        text = f"{who} left the round; later one of its workers failed: {failure_reports.message_of(report)}"
        return case.evidence(Cause.MEMBER_LEFT, text)
    return failure_reports.worker_failure(
        report, member.pod_name, member.group_rank, member.pod_uid, member.node_name
    )


def _lost_with_the_leader(p: Pass) -> list[Evidence]:
    """Mark the silent members on the node of a leader that is lost with it as lost.

    A member renews its Lease only once a minute, because the leader watches its heartbeats. If that is lost
    with the node that both are on, no participant watches, and the member would be waited for much longer.
    So the silence that is enough for a leader is enough for the member.
    """
    members = p.status.members()
    if not members or members[0].state != MemberState.LOST:
        return []
    leader = p.pods_by_uid.get(members[0].pod_uid)
    if leader is None or leader.ended or leader.exit is not None or not pod_ends.node_problem(p, leader):
        return []
    found = []
    for member in members[1:]:
        pod = p.pods_by_uid.get(member.pod_uid)
        if member.state != MemberState.MEMBER or pod is None or pod.node != leader.node:
            continue
        if witnesses.silent(p, member, p.participant(pod), unheard.SILENT_LEADER_SECONDS):
            who = f"{member.pod_name} (group rank {member.group_rank})"
            found.append(pod_ends.node_lost(p, pod, who, member.group_rank))
    p.mark_lost({e.pod_uid: e.message[:MAX_MEMBER_MESSAGE] for e in found})
    return found
