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

from dataclasses import replace

from elasticjob.contract.participant_record import (
    LEADER_RENEW_SECONDS,
    MEMBER_RENEW_SECONDS,
    AnnouncedState,
)
from elasticjob.contract.reports import MAX_MESSAGE, FailureReport
from elasticjob.contract.text import NO_ERROR_TEXT, node_words, one_line
from elasticjob.rounds.causes import PLANNED, Cause
from elasticjob.rounds.judgement import judge
from elasticjob.rounds.reports import LEADER_STALE_SECONDS, accuses
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.losses import error_text, pod_ends, unheard
from elasticjob_operator.plan.losses.kernel import evidence as of_findings
from elasticjob_operator.plan.losses.kernel import look
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.model import OOM_KILLED, Participant, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import COMPLETED, ParticipantStatus
from elasticjob_operator.plan.state.waits import JobWait

ENDED_WELL_SECONDS = 2.0
"""How long a container that has ended with 0 and not reported its success may have been told to end, while
its pod has not ended (sidecars run on, or its kubelet has more to say)."""

_AGAIN = "Again"
"""Left, but for no failure: its command has started torchrun again after the round had succeeded."""
_AGAIN_TEXT = "its command has started torchrun again"

MAX_MEMBER_MESSAGE = 200
"""Characters that stand with each member: a thousand workers' messages would not fit into the status."""
LATE_RENEWALS = 1.5
"""A member whose Lease is older than this many intervals may be cut off from the API server: it is no witness
for its leader, and would not hear of the end of its round."""


def examine(p: Pass) -> list[Evidence]:
    """Bring the members' states up to date; return the evidence against the round, if any."""
    evidence: list[Evidence] = []
    members = []
    for member in p.status.members():
        state, found = _examine(p, member)
        if found is not None:
            evidence.append(found)
        message = found.message[:MAX_MEMBER_MESSAGE] if found else member.message
        if state == _AGAIN:
            state, message = MemberState.LEFT, _AGAIN_TEXT
        same = (state, message) == (member.state, member.message)
        members.append(member if same else replace(member, state=state, message=message))
    p.set_members(tuple(members))
    evidence += _lost_with_the_leader(p)
    failed = _worker_failures(p)
    reported = {e.pod_uid for e in failed}
    # A container that ended because its worker did is that worker's failure, and perhaps an echo.
    evidence = [e for e in evidence if e.cause != Cause.POD_FAILED or e.pod_uid not in reported] + failed
    with look(p) as one:
        findings = judge(one, bool(evidence))
    return evidence + of_findings(findings)


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
            return True  # also one that was marked lost, and has announced itself again all the same
        if record is None and member.state == MemberState.LEFT:
            return True
    return False


def _examine(p: Pass, member: ParticipantStatus) -> tuple[str, Evidence | None]:
    """The member's state, and what speaks against the round, from its pod and its Lease."""
    over = p.round.phase != "Active"
    who = f"{member.pod_name} (group rank {member.group_rank})"
    pod = p.pods_by_uid.get(member.pod_uid)
    if member.state == MemberState.LOST:
        if pod is None or not member.message:  # the latter: it had succeeded
            return MemberState.LOST, None
        return MemberState.LOST, pod_ends.later_evidence(
            p, pod, who, p.round.next_cause.cause, member.group_rank
        )
    own = p.job.spec.template is not None
    goes_on = own and (
        not over or (p.round.next_cause.cause == Cause.STARTED_AGAIN and started_again(p, member))
    )
    if member.completed or (member.state == MemberState.SUCCEEDED and not goes_on):
        # What it has done stays done, whatever becomes of its pod; but not for another round.
        return _done(p, own, over), None
    if pod is None:
        return MemberState.LOST, _vanished(p, member, who)
    if member.state == MemberState.SUCCEEDED:
        return _after_success(p, member, pod, who)
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    left = record is not None and record.id != member.id
    leaving = p.leaving(pod) and not left
    if record is not None and not left and record.state == AnnouncedState.SUCCEEDED.value:
        if own and not over:
            return _after_success(p, member, pod, who)
        return _done(p, own, over), None
    if pod.exit is not None or pod.ended:
        if pod.exited_well and not left and not leaving:
            # A process that is told to stop may end with 0, too. The pod says what stopped it when all of it
            # has ended.
            waits = not pod.ended and not pod.deleting
            if waits and p.waits.left(JobWait.EXIT_EXPLAINED, pod.uid, ENDED_WELL_SECONDS) > 0:
                return member.state, None
            if pod_ends.disruption_of(p, pod, who, member.group_rank) is None:
                return _done(p, own, over), None
        found = pod_ends.explain(p, pod, who, member.group_rank)
        if leaving and found.cause in (Cause.POD_FAILED, Cause.POD_LOST):
            # It was told to stop, and nothing says why. Its exit code is the echo.
            how = f"its {pod_ends.describe_end(pod, pod.exit)}" if pod.exit is not None else "its pod failed"
            found = _evidence(Cause.MEMBER_LEFT, member, f"{who} left: its torchrun was shutting down; {how}")
        return MemberState.LOST, found
    if pod.deleting and pod.uid not in p.held:
        return MemberState.LOST, pod_ends.disruption_of(p, pod, who, member.group_rank)
    if p.on_dead_node(pod) or (
        pod_ends.node_problem(p, pod) and not _vouched_for(p, member) and _silent(p, member, lease)
    ):
        return MemberState.LOST, pod_ends.node_lost(p, pod, who, member.group_rank)
    if record is None:
        return member.state, None
    if left and member.state == MemberState.LEFT and member.message == _AGAIN_TEXT:
        return MemberState.LEFT, None
    if left and over and record.state == AnnouncedState.JOINING.value and not p.in_time(record):
        return MemberState.MEMBER, None  # the round has another number since: it has to announce itself again
    if left:
        if not p.is_of_round(record.from_round) or record.from_job_uid != p.job.uid:
            again = own and not over and record.state == AnnouncedState.JOINING.value
            if again and (_has_finished(p, lease) or _others_have_finished(p)):
                return MemberState.SUCCEEDED, None  # no operator was there to see it say so
            killed = (
                killed_for_memory(pod, who, member.group_rank)
                if pod.restarts > member.container_restarts
                else None
            )
            # Containers of ours are never restarted: there it is a second agent.
            ours = p.job.spec.template is not None
            how = "was replaced by another torchrun in its pod" if ours else "was restarted in place"
            return MemberState.LEFT, killed or _evidence(Cause.POD_RESTARTED, member, f"{who} {how}")
        return MemberState.LEFT, _left_round(p, member, who)
    if leaving:
        return MemberState.LEFT, _evidence(
            Cause.MEMBER_LEFT, member, f"{who} left: its torchrun was shutting down"
        )
    if not over and unheard.says_left(p, member.group_rank):
        return MemberState.LEFT, _left_round(p, member, who)
    if over and member.state == MemberState.LEFT:
        return MemberState.MEMBER, None  # others said so; that it announces itself is still awaited
    return member.state, None


def _done(p: Pass, own: bool, over: bool) -> str:
    """The state of a member that has done its part. For another round it is lost; but if a planned change
    ended a round of others' pods, perhaps all have done theirs."""
    if not over:
        return COMPLETED if own else MemberState.SUCCEEDED
    return MemberState.SUCCEEDED if not own and p.round.next_cause.cause in PLANNED else MemberState.LOST


def _has_finished(p: Pass, lease: Participant | None) -> bool:
    """Whether a torchrun of this pod has finished the round, also if another has its Lease by now."""
    return lease is not None and bool(p.round.nonce) and lease.finished == p.round.nonce


def _others_have_finished(p: Pass) -> bool:
    """Whether no torchrun of this round is left, as far as Leases and pods tell: some have ended well, and in
    all others' containers there is another one. They end well together or not at all."""
    if p.others_have_finished is None:
        ends_seen = {_how_it_has_finished(p, m) for m in p.status.members()}
        p.others_have_finished = "well" in ends_seen and "" not in ends_seen
    return p.others_have_finished


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


def _after_success(p: Pass, member: ParticipantStatus, pod: Pod, who: str) -> tuple[str, Evidence | None]:
    """The state of a member whose workers have finished, and whose container goes on or has ended.

    What its command does now concerns no other member, and no Lease tells of it: a node that is not ready no
    longer counts against it, only what ends it for certain does.
    """
    found: Evidence | None = None
    if pod.last_exit is not None and pod.last_exit.code == 0:
        return COMPLETED, None  # a webhook has made restartPolicy Always: it would do all of it again
    if pod.exit is not None or pod.ended:
        if pod.exited_well and not p.leaving(pod):
            waits = not pod.ended and not pod.deleting
            if waits and p.waits.left(JobWait.EXIT_EXPLAINED, pod.uid, ENDED_WELL_SECONDS) > 0:
                return MemberState.SUCCEEDED, None
            if pod_ends.disruption_of(p, pod, who, member.group_rank) is None:
                return COMPLETED, None
        found = pod_ends.explain(p, pod, who, member.group_rank)
        if found.cause == Cause.POD_FAILED and pod.exit is not None and pod.exit.code:
            whose = "all" if all(m.succeeded for m in p.status.members()) else "its"
            how = f"{pod_ends.describe_exit(pod.exit)}{pod_ends.said(pod.exit)}"
            text = f"after {whose} workers had succeeded, the command of {who} ended with {how}"
            return MemberState.LOST, replace(found, message=text)
    elif pod.deleting:
        found = pod_ends.disruption_of(p, pod, who, member.group_rank)
    elif p.on_dead_node(pod):
        found = pod_ends.node_lost(p, pod, who, member.group_rank)
    if found is not None:
        return MemberState.LOST, replace(found, message=f"{found.message}; its workers had succeeded")
    return (MemberState.SUCCEEDED if p.round.phase == "Active" else _AGAIN), None


def _vanished(p: Pass, member: ParticipantStatus, who: str) -> Evidence:
    """The pod is the job's no more.

    The pod's object is gone, and with it what it said last; the node may still say something.

    A pod that fails stays. One that is gone from a node that is well was deleted, and the end of its grace
    period came while no operator looked; where another controller creates the pods, it may have removed a
    failed one.
    """
    there = p.pods_by_name.get(member.pod_name)
    if there is not None and there.uid == member.pod_uid:
        return _evidence(
            Cause.POD_DELETED,
            member,
            f"{who} no longer belongs to the job: its owner reference was changed or removed",
        )
    if member.node_name and p.observed.nodes is not None and member.node_name not in p.observed.nodes:
        text = f"{who} was lost: its pod is gone, and {node_words(member.node_name)} is gone or not ready"
        return replace(_evidence(Cause.NODE_LOST, member, text), reasons=("NodeLost",))
    if p.job.spec.template is not None:
        return _evidence(Cause.POD_DELETED, member, f"{who} was lost: its pod was deleted")
    return _evidence(Cause.POD_LOST, member, f"{who} was lost: its pod is gone")


def worker_failure(report: FailureReport, pod: str, group_rank: int | None, uid: str, node: str) -> Evidence:
    """The evidence that a worker of this pod failed."""
    return Evidence(
        Cause.WORKER_FAILED,
        f"a worker of {pod} (group rank {group_rank}) failed: {_message_of(report)}",
        pod,
        group_rank,
        report.exit_code,
        uid,
        node,
        error_text=report.message.removesuffix(f"; {NO_ERROR_TEXT}"),
        milliseconds=report.offset_milliseconds,
    )


def _message_of(report: FailureReport) -> str:
    """A worker's message for a sentence. Rules look for their pattern in the text as it is, in all lines."""
    return error_text.without_chatter(one_line(report.message, MAX_MESSAGE)) or "exit code unknown"


def killed_for_memory(pod: Pod, who: str, group_rank: int | None) -> Evidence | None:
    """The evidence that the container was restarted in place because it took too much memory."""
    end = pod.last_exit
    if end is None or end.reason != OOM_KILLED:
        return None
    text = f"{who} was restarted in place: its container was killed: {pod_ends.describe_exit(end)}"
    return Evidence(
        Cause.OUT_OF_MEMORY, text, pod.name, group_rank, end.code, pod.uid, pod.node, reasons=(end.reason,)
    )


def _worker_failures(p: Pass) -> list[Evidence]:
    """What the members' agents report of workers that failed in this round, also those agents that have ended
    since. A report that came late explains and is no cause."""
    found = []
    for member in p.status.members():
        report = _failure_report(p, member)
        if report is not None and not report.after_round_end:
            found.append(
                worker_failure(report, member.pod_name, member.group_rank, member.pod_uid, member.node_name)
            )
    return found


def _failure_report(p: Pass, member: ParticipantStatus) -> FailureReport | None:
    """This member's report on the current round, its own or what it has told others."""
    return _own_failure_report(p, member) or unheard.failure(p, member)


def _own_failure_report(p: Pass, member: ParticipantStatus) -> FailureReport | None:
    """The report in its own Lease.

    One that stands in a Lease with the member's own id is the last word of an agent that gave up. Where pods
    may have lived with a job of the same name, it could also be from then: it counts when the pod has ended.
    """
    lease = p.observed.leases.get(member.pod_name)
    if lease is None or lease.holder != member.pod_uid or lease.failure is None:
        return None
    record = lease.record
    if lease.failure.round_number != p.round.number or record is None:
        return None  # what failed in one that has got another number may be the echo of its end
    if record.id != member.id:
        same = record.from_round == p.round.number and record.from_job_uid == p.job.uid
        return lease.failure if same else None
    pod = p.pods_by_uid.get(member.pod_uid)
    over = pod is None or pod.exit is not None or pod.ended
    return lease.failure if over or p.job.spec.template is not None else None


def _left_round(p: Pass, member: ParticipantStatus, who: str) -> Evidence:
    """The member has announced itself again: for the failure of a worker, or for no known reason."""
    report = _failure_report(p, member)
    if report is None:
        over = p.round.phase != "Active"
        how = "was stopped with the round" if over else "left the round without giving a reason"
        return _evidence(Cause.MEMBER_LEFT, member, f"{who} {how}")
    if report.after_round_end:
        text = f"{who} left the round; later one of its workers failed: {_message_of(report)}"
        return _evidence(Cause.MEMBER_LEFT, member, text)
    return worker_failure(report, member.pod_name, member.group_rank, member.pod_uid, member.node_name)


def _evidence(cause: str, member: ParticipantStatus, message: str, exit_code: int | None = None) -> Evidence:
    return Evidence(
        cause,
        message,
        member.pod_name,
        member.group_rank,
        exit_code,
        pod_uid=member.pod_uid,
        node_name=member.node_name,
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
        if _silent(p, member, p.participant(pod), unheard.SILENT_LEADER_SECONDS):
            who = f"{member.pod_name} (group rank {member.group_rank})"
            found.append(pod_ends.node_lost(p, pod, who, member.group_rank))
    p.mark_lost({e.pod_uid: e.message[:MAX_MEMBER_MESSAGE] for e in found})
    return found


def _silent(
    p: Pass, member: ParticipantStatus, lease: Participant | None, limit: float | None = None
) -> bool:
    """The second witness against a pod on a node that is not ready: it was reported unreachable, or its Lease
    was not renewed three times. A kubelet that died alone takes no training with it."""
    if member.state == MemberState.UNREACHABLE:
        return True
    silent = lease.silent if lease is not None else p.waits.elapsed(JobWait.SILENCE, member.pod_uid)
    limit = 3 * renew_seconds(member) if limit is None else limit
    left = limit - silent
    if left >= 0:
        p.waits.declare(JobWait.SILENCE, member.pod_uid, limit, left)
        p.waits.wake(left + 1)  # silence makes no event
    else:
        p.judged_silent.add(member.pod_name)
        p.judged_unheard.add(member.pod_name)
    return left < 0


def renew_seconds(member: ParticipantStatus) -> float:
    """How often a member of a running round renews its Lease."""
    return LEADER_RENEW_SECONDS if member.group_rank == 0 else MEMBER_RENEW_SECONDS


def _vouched_for(p: Pass, member: ParticipantStatus) -> bool:
    """Whether a member that watches this one's heartbeats is heard of and does not miss them: a node that is
    not ready and a silent Lease may be one and the same path to the API server, and training goes on by
    another."""
    if p.round.phase != "Active" or p.round.established_time is None or member.state != MemberState.MEMBER:
        return False
    leader, *others = p.status.members()
    witnesses = others if member.group_rank == 0 else [leader]
    return any(
        _is_heard(p, witness) and not accuses(p.report_of(witness.pod_uid), witness.state)
        for witness in witnesses
    )


def _is_heard(p: Pass, member: ParticipantStatus) -> bool:
    """Whether this member of the running round lives as far as its pod, its node and its Lease tell: it says
    in its Lease, within seconds, which members it misses."""
    pod = p.pods_by_uid.get(member.pod_uid)
    lease = p.participant(pod) if pod is not None and member.state == MemberState.MEMBER else None
    if pod is None or lease is None or lease.record is None or lease.record.id != member.id:
        return False
    if (
        not (p.alive(pod) or pod.uid in p.held)
        or pod_ends.node_problem(p, pod)
        or lease.record.state != AnnouncedState.JOINING.value
    ):
        return False
    late = LEADER_STALE_SECONDS if member.group_rank == 0 else LATE_RENEWALS * MEMBER_RENEW_SECONDS
    left = late - lease.silent
    if left >= 0:
        p.waits.wake(left + 1)  # silence makes no event
    return left >= 0
