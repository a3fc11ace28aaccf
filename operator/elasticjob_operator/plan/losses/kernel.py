"""Runs the round kernel on a job's round: makes a ``RoundView`` of status, pods and Leases, and takes its
result into status and evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from elasticjob.rounds.state import Finding, Heard, Member, RoundState, RoundView
from elasticjob_operator.plan.losses import excluded_nodes
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus


@contextmanager
def look(p: Pass) -> Iterator[RoundView]:
    """A look at the round of this pass. What the kernel makes of it is in the status afterwards."""
    before = round_state(p.status)
    one = RoundView(
        state=before,
        limits=p.job.spec.limits,
        waits=p.waits,
        wall=p.now.wall,
        hear=partial(_hear, p),
        readable=p.record_is_current,
        present=p.pods_by_name,
    )
    yield one
    _take_over(p, before, one)


def round_state(status: JobStatus) -> RoundState:
    """The status's round, as the kernel knows it."""
    r = status.current_round
    broken = r.phase == "Broken"
    return RoundState(
        number=r.number,
        phase=r.phase,
        nonce=r.nonce,
        members=status.kernel_members,
        cause=r.next_cause.cause if broken else "",
        start=r.start_time,
        established=r.established_time,
        resumed=broken and r.resumed,
        quorum_time=r.quorum_time,
        establish_failures=r.establish_failures,
        unarrived=r.unarrived_pods,
        ineligible_leaders=r.ineligible_leaders,
        unreachable_reports=r.unreachable_reports,
    )


def evidence(findings: Iterable[Finding]) -> list[Evidence]:
    """The kernel's findings, as evidence on pods."""
    return [
        Evidence(
            f.cause.value,
            f.message,
            f.member.name if f.member is not None else "",
            f.member.group_rank if f.member is not None else None,
            pod_uid=f.member.key if f.member is not None else "",
            node_name=f.member.place if f.member is not None else "",
            detect_milliseconds=f.detect_milliseconds,
        )
        for f in findings
    ]


def _hear(p: Pass, member: Member) -> Heard | None:
    """What was heard from this member, if its pod's Lease is there."""
    lease = p.lease_of(member.key)
    return (
        Heard(p.report_of(member.key), lease.report_unreadable, lease.silent) if lease is not None else None
    )


def _taken_over(entry: ParticipantStatus, before: Member, after: Member) -> ParticipantStatus:
    state = after.state if after.state != before.state else entry.state  # Completed is not the kernel's
    return replace(entry, state=state, message=after.message)


def _take_over(p: Pass, before: RoundState, one: RoundView) -> None:
    after = one.state
    for place, why in one.avoid:
        excluded_nodes.exclude(p, place, why)
    p.judged_unheard |= one.judged_unheard
    p.judged_silent |= one.judged_silent
    if after is before:
        return
    if after.members is not before.members:
        pairs = zip(before.members, after.members, strict=True)
        changed = {new.id: (old, new) for old, new in pairs if new is not old}
        p.set_members(
            tuple(_taken_over(m, *changed[m.id]) if m.id in changed else m for m in p.status.members())
        )
    p.set_round(
        established_time=after.established,
        establish_failures=after.establish_failures,
        quorum_time=after.quorum_time,
        unarrived_pods=after.unarrived,
        ineligible_leaders=after.ineligible_leaders,
        unreachable_reports=after.unreachable_reports,
    )
    if before.cause and not after.cause and p.round.charged_time is None:
        p.set_end(cause="")
