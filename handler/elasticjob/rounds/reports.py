"""What members report about each other: the leader about members, and members about the leader.

If more than half of the other members cannot reach the leader, they are believed. If fewer cannot, they are
taken to be cut off themselves. In a round of two, the leader's port and its signs of life decide.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.text import listed
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import (
    GONE,
    RENEWED_WITHIN_SECONDS,
    Finding,
    Member,
    MemberState,
    RoundView,
    UnreachableReport,
)
from elasticjob.rounds.waits import RoundWait

ACCUSER_GRACE_SECONDS = 2.0
"""How long fewer than half of the members may accuse the leader before they count as unreachable
themselves."""

LEADER_STALE_SECONDS = 1.2 * LEADER_RENEW_SECONDS
"""A leader that has not renewed its announcement for this time cannot vouch for itself."""

REPORT_WINDOW = timedelta(minutes=10)
"""A member that is reported unreachable twice within this time is lost."""

MAX_REPORTS = 100


def find_unreachable(view: RoundView) -> list[Finding]:
    """Take the members' reports in: mark those that are unreachable, and say why."""
    return [*_accusations(view), *_reported_by_leader(view)]


def accuses(report: RoundReport | None, state: str) -> bool:
    """Whether a member in this state, with this report, says that it can't reach the leader."""
    return report is not None and report.leader_lost and state != MemberState.LOST


def suspect_leader(view: RoundView, leader: Member, missed: int, others: int) -> None:
    """A leader that reaches fewer than half of several others may be the one that is cut off: it must not
    lead the next round."""
    if others >= 2 and 2 * missed > others:
        view.exclude_from_leading(leader.name)


def _reported_by_leader(view: RoundView) -> list[Finding]:
    """The members that the leader reports silent, also when the round has ended and it waits for the next."""
    leader = view.state.leader
    if leader is None or leader.state not in (MemberState.MEMBER, MemberState.LEFT):
        return []
    report = view.report_of(leader)
    if report is None:
        return []
    silent = set(report.silent_ranks)
    why = report.message or "its heartbeats stopped"
    others = view.state.members[1:]
    accusers = [m for m in others if m.group_rank in silent and accuses(view.report_of(m), m.state)]
    if len(others) > 1 and 2 * len(accusers) > len(others):  # it has rejoined, or it would be unreachable now
        return _believe(view, leader, accusers, len(others))
    reported = {
        m.id: f"{m.where} (group rank {m.group_rank}) was unreachable: {why}, as the leader {leader.where} "
        "reports"
        for m in others
        if m.group_rank in silent and m.state == MemberState.MEMBER
    }
    suspect_leader(view, leader, len(reported), len(others))
    return _unreachable(view, reported, report.silent_milliseconds)


def _accusations(view: RoundView) -> list[Finding]:
    members = view.state.members
    accusers = [m for m in members[1:] if accuses(view.report_of(m), m.state)]
    if not accusers or members[0].state in GONE:
        return []
    leader, others, number = members[0], len(members) - 1, view.state.number
    waited = view.waits.elapsed(RoundWait.ACCUSATION, number)
    believed = 2 * len(accusers) > others
    if others == 1:
        accuser_is_right = _one_against_the_leader(view, leader, accusers[0], waited)
        if accuser_is_right is None:
            return []
        believed = accuser_is_right
    if believed:
        return _believe(view, leader, accusers, others)
    if not view.state.active or view.waits.left(RoundWait.ACCUSATION, number, ACCUSER_GRACE_SECONDS) > 0:
        return []
    view.judged_unheard.update(m.name for m in accusers)
    proof = ", but other members can" if others > 1 else ", which still renews its Lease"
    return _unreachable(
        view,
        {
            m.id: f"{m.where} (group rank {m.group_rank}) cannot reach the leader {leader.where}{proof}"
            for m in accusers
            if m.state == MemberState.MEMBER
        },
    )


def _believe(view: RoundView, leader: Member, accusers: list[Member], others: int) -> list[Finding]:
    reason = next((r.message for m in accusers if (r := view.report_of(m)) is not None and r.message), "")
    who = listed([m.where for m in accusers])
    if others > 1:
        who = f"{len(accusers)} of {others} other members ({who})"
    text = f"the leader {leader.where} cannot be reached by {who}"
    text = f"{text}: {reason}" if reason else text
    view.exclude_from_leading(leader.name)
    _acquit(view, accusers)
    its_word = not view.state.active and view.state.cause == Cause.UNREACHABLE
    if its_word:
        view.set(cause="")
    if leader.state == MemberState.LEFT:
        return [Finding(Cause.LEADER_UNREACHABLE, text, leader)] if its_word else []
    return _unreachable(view, {leader.id: text})


def _acquit(view: RoundView, accusers: list[Member]) -> None:
    """What the leader has said of these is not true, and counts no longer."""
    view.set_members(
        {
            m.id: replace(m, state=MemberState.MEMBER.value, message="")
            for m in accusers
            if m.state == MemberState.UNREACHABLE
        }
    )
    names = {m.name for m in accusers}
    view.set(unreachable_reports=tuple(r for r in view.state.unreachable_reports if r.name not in names))


def _one_against_the_leader(view: RoundView, leader: Member, accuser: Member, waited: float) -> bool | None:
    """Whether the only other member accuses the leader rightly; None: not known yet.

    It does if the leader's port refuses connections, or if the leader has not renewed its announcement in
    time. If the leader has renewed it since the accusation, the accuser's path is broken.
    """
    report = view.report_of(accuser)
    if report is not None and report.connection_refused:
        return True
    heard = view.hear(leader)
    if heard is None or heard.silent_seconds > LEADER_STALE_SECONDS:
        if heard is not None:
            view.judged_silent.add(leader.name)
        view.judged_unheard.add(leader.name)
        return True
    renewed = heard.silent_seconds if heard.renewed_seconds is None else heard.renewed_seconds
    if renewed + RENEWED_WITHIN_SECONDS < waited:
        return False
    left = LEADER_STALE_SECONDS - heard.silent_seconds
    view.waits.declare(RoundWait.LEADER_SIGN, view.state.number, LEADER_STALE_SECONDS, left)
    view.waits.wake(left + 0.1)  # silence makes no event
    return None


def _unreachable(view: RoundView, reported: dict[str, str], silent: int | None = None) -> list[Finding]:
    """Take the members with these ids for unreachable, and for lost the second time. ``silent`` is for how
    many milliseconds they were when that was said."""
    if not reported:
        return []
    recent = tuple(r for r in view.state.unreachable_reports if view.wall - r.time < REPORT_WINDOW)
    before = {r.name for r in recent}
    found, changed = [], {}
    for m in view.state.members:
        if m.id not in reported:
            continue
        twice = m.name in before
        text = reported[m.id] + " (second report within ten minutes)" * twice
        if twice:
            view.avoid.append((m.place, text))
        cause = Cause.LEADER_UNREACHABLE if m.group_rank == 0 else Cause.UNREACHABLE
        found.append(Finding(cause, text, m, silent))
        state = MemberState.LOST if twice else MemberState.UNREACHABLE
        changed[m.id] = replace(m, state=state.value, message=text)
    view.set_members(changed)
    fresh = tuple(UnreachableReport(m.name, view.wall) for m in changed.values() if m.name not in before)
    view.set(unreachable_reports=(*recent, *fresh)[-MAX_REPORTS:])
    return found
