"""The round kernel looks at the round of a job: status, pods and Leases in, status and evidence out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import Finding, Heard, Look, Member, RoundState, UnreachableReport
from elasticjob_operator.plan import nodes
from elasticjob_operator.plan.causes import Evidence
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.status import JobStatus, Named


@contextmanager
def look(p: Pass) -> Iterator[Look]:
    """A look at the round of this pass. What the kernel makes of it is in the status afterwards."""
    before = round_state(p.status)
    one = Look(
        state=before,
        limits=p.job.spec.limits,
        waits=p.waits,
        wall=p.now.wall,
        hear=partial(_hear, p),
        readable=p.told,
        present=p.pods_by_name,
    )
    yield one
    _take_over(p, before, one)


def round_state(status: JobStatus) -> RoundState:
    """The status's round, as the kernel knows it."""
    r = status.round
    broken = r.phase == "Broken"
    return RoundState(
        number=r.number,
        phase=r.phase,
        nonce=r.nonce,
        members=status.kernel_members,
        cause=r.cause if broken else "",
        start=r.start,
        established=r.established,
        resumed=broken and r.cause == Cause.RESUMED,
        quorum_time=r.enough,
        establish_failures=r.establish_failures,
        unarrived=r.missing,
        ineligible_leaders=r.not_leading,
        unreachable_reports=tuple(UnreachableReport(n.pod, n.time) for n in r.named),
    )


def named(state: RoundState) -> tuple[Named, ...]:
    """Who was reported unreachable, for the status."""
    return tuple(Named(r.name, r.time) for r in state.unreachable_reports)


def evidence(findings: Iterable[Finding]) -> list[Evidence]:
    """The kernel's findings, as evidence on pods."""
    return [
        Evidence(
            f.cause.value,
            f.message,
            f.member.name if f.member is not None else "",
            f.member.rank if f.member is not None else None,
            uid=f.member.key if f.member is not None else "",
            node=f.member.place if f.member is not None else "",
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


def _take_over(p: Pass, before: RoundState, one: Look) -> None:
    after = one.state
    for place, why in one.avoid:
        nodes.exclude(p, place, why)
    p.given_up |= one.judged_unheard
    p.silent |= one.judged_silent
    if after is before:
        return
    if after.members is not before.members:
        new = {m.id: m for m, old in zip(after.members, before.members, strict=True) if m is not old}
        p.set_members(
            tuple(
                replace(m, state=new[m.id].state, message=new[m.id].message) if m.id in new else m
                for m in p.status.members()
            )
        )
    p.set_round(
        established=after.established,
        establish_failures=after.establish_failures,
        enough=after.quorum_time,
        missing=after.unarrived,
        not_leading=after.ineligible_leaders,
        named=named(after),
    )
    if before.cause and not after.cause and p.round.charged is None:
        p.set_round(cause="")
