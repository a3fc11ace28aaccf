"""Whether a round is established: every member has reached the leader before its workers start."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.text import listed
from elasticjob.rounds.causes import CHARGED_ONCE, CUT_OFF, Cause
from elasticjob.rounds.reports import suspect_leader
from elasticjob.rounds.state import Finding, MemberState, RoundState, RoundView
from elasticjob.rounds.waits import RoundWait


def take_established(view: RoundView, spoken_for: bool = False) -> bool:
    """Take note that the leader reports the round established. Returns whether that is new.

    ``spoken_for``: the leader cannot write, and another member says so, which it does only after the barrier.
    """
    leader = view.state.leader
    if leader is None or view.state.established is not None:
        return False
    report = view.report_of(leader)
    if not spoken_for and (report is None or not report.established):
        return False
    view.set(established=view.wall, establish_failures=0, unarrived=(), ineligible_leaders=())
    return True


def find_not_established(view: RoundView) -> list[Finding]:
    """What speaks against a round that is not established in time.

    Members that have not reached their leader twice in a row are lost. A leader that reports nothing
    does not lead the next round.
    """
    r, leader = view.state, view.state.leader
    if r.established is not None or leader is None:
        return []
    heard = view.hear(leader)
    report = heard.report if heard is not None else None
    unarrived_ranks = set(report.unarrived_ranks) if report is not None else set()
    unarrived = [m for m in r.members if m.group_rank in unarrived_ranks]
    if unarrived:
        suspect_leader(view, leader, len(unarrived), len(r.members) - 1)
        again = f"did not reach the leader {leader.where} in two rounds in a row"
        view.set_members(
            {
                m.id: replace(m, state=MemberState.LOST.value, message=f"{m.where} {again}")
                for m in unarrived
                if m.name in r.unarrived
            }
        )
        view.set(unarrived=tuple(m.name for m in unarrived))
        who = listed([m.where for m in unarrived])
        text = f"{who} did not reach the leader {leader.where} in time"
        return [Finding(Cause.NOT_ESTABLISHED, text, unarrived[0])]
    limit = 2 * view.limits.establish_timeout
    if view.left(RoundWait.ESTABLISHMENT, limit) > 0:
        return []
    view.exclude_from_leading(leader.name)
    view.judged_unheard.add(leader.name)
    if heard is not None and heard.unreadable:
        # It has reported something, perhaps missing members: an unreadable report is no evidence against it.
        text = (
            f"{limit} s after the round began, the report of the leader {leader.where} still cannot be read: "
            "the elasticjob package in the pods may be newer than the operator, or a program in the pod "
            "writes its Lease"
        )
        return [Finding(Cause.NOT_ESTABLISHED, text)]
    text = f"the leader {leader.where} did not report within {limit} s whether all members had reached it"
    return [Finding(Cause.LEADER_UNREACHABLE, text, leader)]


def continues_series(r: RoundState, formed_for: str, failed: str) -> bool:
    """Whether a round that has ended was never established for what ended the one before: one broken path
    is one failure. ``formed_for`` is the cause for which the round was formed, "" if that is not known;
    ``failed`` names the participant whose failure has ended it, if any."""
    if r.cause not in CHARGED_ONCE or not r.establish_failures:
        return False
    if r.establish_failures > 1:
        return True
    if r.start is None or formed_for not in CUT_OFF:
        return False
    unarrived = set(r.unarrived) if r.cause == Cause.NOT_ESTABLISHED else {failed} - {""}
    return bool(unarrived) and unarrived <= {n.name for n in r.unreachable_reports if n.time <= r.start}
