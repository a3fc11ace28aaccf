"""Runs the round kernel on a job's round. Only here the planner's terms become the kernel's, and back.

| here | in the kernel |
|---|---|
| ``JobStatus.current_round`` | ``RoundState`` |
| ``ParticipantStatus`` (Completed: Succeeded) | ``Member`` |
| pods and Leases of a pass | ``RoundView``, which asks for what was ``Heard`` |
| ``Evidence`` | ``Finding`` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from elasticjob.rounds.state import Finding, Heard, Member, MemberState, RoundState, RoundView
from elasticjob_operator.plan.losses import excluded_nodes
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus


@contextmanager
def round_view(p: Pass) -> Iterator[RoundView]:
    """The round of this pass, for the kernel. What that decides is in the status afterwards."""
    before = round_state(p)
    view = RoundView(
        state=before,
        limits=p.job.spec.limits,
        waits=p.waits,
        wall=p.now.wall,
        hear=partial(_hear, p),
        readable=p.record_is_current,
        present=p.pods_by_name,
    )
    yield view
    _take_over(p, before, view)


def round_state(p: Pass) -> RoundState:
    """The round in the status, as the kernel knows it."""
    r, entries = p.round, p.status.members()
    broken = r.phase == "Broken"
    return RoundState(
        number=r.number,
        phase=r.phase,
        nonce=r.nonce,
        members=p.once("round members", lambda: round_members(entries), entries),
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


def round_members(entries: Iterable[ParticipantStatus]) -> tuple[Member, ...]:
    """Members, as the kernel knows them. It knows nothing of containers: a Completed member has succeeded."""
    return tuple(
        Member(m.id, m.pod_name, m.pod_uid, m.group_rank or 0, _state(m), m.message, m.node_name)
        for m in entries
    )


def _state(member: ParticipantStatus) -> str:
    return MemberState.SUCCEEDED.value if member.completed else member.state


def as_evidence(findings: Iterable[Finding]) -> list[Evidence]:
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
    if lease is None:
        return None
    return Heard(p.report_of(member.key), lease.report_unreadable, lease.silent, lease.renewed)


def _taken_over(entry: ParticipantStatus, before: Member, after: Member) -> ParticipantStatus:
    state = after.state if after.state != before.state else entry.state  # Completed is not the kernel's
    return replace(entry, state=state, message=after.message)


def _take_over(p: Pass, before: RoundState, view: RoundView) -> None:
    after = view.state
    for place, why in view.avoid:
        excluded_nodes.exclude(p, place, why)
    p.judged_unheard |= view.judged_unheard
    p.judged_silent |= view.judged_silent
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
