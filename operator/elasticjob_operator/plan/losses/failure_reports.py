"""What the agents of a round report of workers that failed, as evidence."""

from __future__ import annotations

from elasticjob.contract.reports import MAX_MESSAGE, FailureReport
from elasticjob.contract.text import NO_ERROR_TEXT, one_line
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.losses import error_text, pod_ends, unheard
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.model import OOM_KILLED, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus


def worker_failure(report: FailureReport, pod: str, group_rank: int | None, uid: str, node: str) -> Evidence:
    """The evidence that a worker of this pod failed."""
    return Evidence(
        Cause.WORKER_FAILED,
        f"a worker of {pod} (group rank {group_rank}) failed: {message_of(report)}",
        pod,
        group_rank,
        report.exit_code,
        uid,
        node,
        error_text=report.message.removesuffix(f"; {NO_ERROR_TEXT}"),
        milliseconds=report.offset_milliseconds,
    )


def message_of(report: FailureReport) -> str:
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


def worker_failures(p: Pass) -> list[Evidence]:
    """What the members' agents report of workers that failed in this round, also those agents that have ended
    since. A report that came late explains and is no cause."""
    found = []
    for member in p.status.members():
        report = failure_report(p, member)
        if report is not None and not report.after_round_end:
            found.append(
                worker_failure(report, member.pod_name, member.group_rank, member.pod_uid, member.node_name)
            )
    return found


def failure_report(p: Pass, member: ParticipantStatus) -> FailureReport | None:
    """This member's report on the current round, from its own Lease or passed on by others."""
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
    if not lease.failure.of(p.job.uid, p.round.number) or record is None:
        return None  # what failed in one that has got another number may be the echo of its end
    if record.id != member.id:
        same = record.from_round == p.round.number and record.from_job_uid == p.job.uid
        return lease.failure if same else None
    pod = p.pods_by_uid.get(member.pod_uid)
    over = pod is None or pod.exit is not None or pod.ended
    return lease.failure if over or p.job.spec.template is not None else None
