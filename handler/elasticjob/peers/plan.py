"""One look of the coordinator at its run: what should stand in the round Lease now. Pure.

The caller of the round kernel that has no operator. It keeps no account and replaces nothing. Nothing that is
absent ends a round (P4); a Lease that went with its pod is no absence but news.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.reports import FailureReport
from elasticjob.contract.round_record import Outcome, Phase
from elasticjob.contract.text import in_a_row, listed
from elasticjob.peers import kept_out
from elasticjob.peers.forming import form_round, joined
from elasticjob.peers.pacing import MOST_EARLY_ENDS, early_ends
from elasticjob.peers.settled import Settled, leave_out
from elasticjob.peers.sight import Peer, Sight
from elasticjob.peers.silence import quiet_members, standstill
from elasticjob.peers.waiting import PeerWait
from elasticjob.rounds.causes import PLANNED, Cause, better
from elasticjob.rounds.establishment import take_established
from elasticjob.rounds.formation import ended
from elasticjob.rounds.judgement import judge
from elasticjob.rounds.state import Finding, Heard, Member, MemberState, RoundView
from elasticjob.rounds.waits import Waits

GROWTH_SECONDS = 3.0
"""How long a round that is to grow goes on, so that several newcomers cost one new round."""
DEPARTED = (MemberState.LOST, MemberState.LEFT)


@dataclass(frozen=True)
class Decision:
    """``settled`` should stand in the round Lease; ``waiting`` says why no round begins."""

    settled: Settled
    waiting: str = ""
    unheard: frozenset[str] = frozenset()
    """Names of members that were judged by what has not been heard of them: a watch may hang (P4)."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """Endpoints of participants that are waited for, by their pods' UIDs: one that refuses connections is
    gone."""


def look(settled: Settled, sight: Sight, waits: Waits) -> Decision:
    """What should be settled now."""
    if settled.closed:
        return Decision(settled)
    hear = partial(_hear, settled, sight)  # its report counts, also beside a claim that is not credible
    sight = sight.credible(settled.run, settled.state.number)
    view = RoundView(settled.state, settled.limits, waits, sight.wall, hear, present=sight.peers)
    view.set_members({m.id: _seen(settled, m, sight) for m in view.state.members})
    if view.state.active:
        after = _watch(settled, view, sight)
        unheard = frozenset(view.judged_unheard)
        if not after.state.active:
            return Decision(after, unheard=unheard)
        quiet = quiet_members(view, sight)
        return Decision(after, standstill(view, quiet), unheard, sight.ports(quiet))
    settled = _corrected(settled, view, sight)
    formed = form_round(settled, view, sight)
    unheard = frozenset(view.judged_unheard)
    if formed.failed:
        return Decision(_closed(settled, view, Outcome.FAILED, formed.failed), unheard=unheard)
    if formed.chosen is not None:
        return Decision(formed.chosen, unheard=unheard)
    return Decision(replace(settled, state=view.state), formed.waiting, unheard, formed.probes)


def _corrected(settled: Settled, view: RoundView, sight: Sight) -> Settled:
    """Between rounds: what is found now may explain the end of the last round better. One of its members has
    ended without leaving it, or most of the others cannot reach a leader that could not reach them."""
    found = [
        Finding(Cause.POD_LOST, m.message, m)
        for m, before in zip(view.state.members, settled.state.members, strict=True)
        if m.state == MemberState.LOST
        and before.state in (MemberState.MEMBER, MemberState.UNREACHABLE)
        and _failure(settled, sight.has(m.name, m.key)) is None
    ]
    for one in found + judge(view, known=True):
        if better(one.cause, view.state.cause):
            view.set(cause=one.cause.value)
            settled = replace(settled, message=one.message)
    return settled


def _hear(settled: Settled, sight: Sight, member: Member) -> Heard | None:
    """What was heard from this incarnation of a member; None: it is no longer known."""
    peer = sight.has(member.name, member.key)
    report = peer.report if peer is not None else sight.reports.get(member.name)
    report = report if report is not None and report.nonce == settled.state.nonce else None
    if peer is None:
        there = sight.is_there(member.name, member.key)
        return Heard(report, unreadable=report is None) if there else None
    return Heard(report, peer.unreadable_report, peer.silent, peer.renewed)


def _seen(settled: Settled, member: Member, sight: Sight) -> Member:
    """The member of the last round with the state that its Lease, its pod or its port shows. One that reports
    the failure of a worker and does not join again ends."""
    if member.state in (MemberState.LOST, MemberState.SUCCEEDED):
        return member
    peer = sight.has(member.name, member.key)
    r, failure = settled.state, peer.failure if peer is not None else None
    ends = failure is not None and failure.of(settled.run, r.number, r.nonce)
    if _succeeds(member, peer, not ends and member.key in sight.finished):
        return replace(member, state=MemberState.SUCCEEDED.value)
    if member.key in sight.gone:
        return _lost(member, f"{member.name}: {sight.gone[member.key]}")
    if peer is None and sight.is_there(member.name, member.key):
        return member
    if peer is None:
        return _lost(member, f"the Lease of {member.name} is gone, as its pod probably is")
    if peer.record.id != member.id or peer.record.state == AnnouncedState.LEAVING or ends:
        return replace(member, state=MemberState.LEFT.value)
    return member


def _succeeds(member: Member, peer: Peer | None, finished: bool) -> bool:
    """Whether this member has finished its round well: it says so, or its pod does that has ``finished``."""
    if peer is None or peer.record.id != member.id:
        return finished and peer is None
    state = peer.record.state
    return state == AnnouncedState.SUCCEEDED or (finished and state == AnnouncedState.JOINING)


def _lost(member: Member, why: str) -> Member:
    return replace(member, state=MemberState.LOST.value, message=why)


def _watch(settled: Settled, view: RoundView, sight: Sight) -> Settled:
    """A round that runs: it is over if something speaks against it, or if it can grow."""
    if take_established(view):
        settled = kept_out.take_established(settled, view.state)
    if view.state.members and all(m.state == MemberState.SUCCEEDED for m in view.state.members):
        return _closed(settled, view, Outcome.COMPLETE, "all members have succeeded")
    found = judge(view, any(m.state in DEPARTED for m in view.state.members))
    found += _hang(view) + _departures(settled, view, sight)
    if found:
        return _over(settled, view, sight, found)
    new = _newcomers(settled, view, sight)
    if not new:
        return replace(settled, state=view.state)
    settled = kept_out.let_in(settled, {sight.peers[name].key for name in new})
    return _over(settled, view, sight, [Finding(Cause.SCALED_UP, f"{listed(new)} joined")])


def _hang(view: RoundView) -> list[Finding]:
    leader = view.state.leader
    report = view.report_of(leader) if leader is not None else None
    return [Finding(Cause.HANG, report.message, leader)] if report is not None and report.hung else []


def _departures(settled: Settled, view: RoundView, sight: Sight) -> list[Finding]:
    """The members that are lost or have left, the failure of a worker that explains the others in front."""
    found = []
    for m in view.state.members:
        if m.state == MemberState.LOST:
            found.append((0, Finding(Cause.POD_LOST, m.message, m)))
        elif m.state == MemberState.LEFT:
            peer = sight.has(m.name, m.key)
            found.append(_departure(settled, m, peer))
    return [finding for _, finding in sorted(found, key=lambda one: one[0])]


def _departure(settled: Settled, m: Member, peer: Peer | None) -> tuple[int, Finding]:
    """Why a living member has left the round, and when in it, as far as that is known. An agent that joins
    again by itself has had the failure of a worker."""
    failure = _failure(settled, peer)
    if failure is not None:
        text = f"a worker of {m.name} failed" + f": {failure.message}" * bool(failure.message)
        return failure.offset_milliseconds or 0, Finding(Cause.WORKER_FAILED, text, m)
    if peer is None or peer.record.state != AnnouncedState.JOINING:
        return 0, Finding(Cause.MEMBER_LEFT, f"{m.name} has left the round", m)
    if peer.record.from_round == settled.state.number:
        return 0, Finding(Cause.WORKER_FAILED, f"a worker of {m.name} failed", m)
    return 0, Finding(Cause.POD_RESTARTED, f"the agent of {m.name} has started again", m)


def _failure(settled: Settled, peer: Peer | None) -> FailureReport | None:
    """The failure of a worker that it reports of the last round, unless that was over before."""
    r, failure = settled.state, peer.failure if peer is not None else None
    if failure is None or failure.after_round_end or not failure.of(settled.run, r.number, r.nonce):
        return None
    return failure


def _newcomers(settled: Settled, view: RoundView, sight: Sight) -> list[str]:
    """The names of those for which a round below its maximum ends now, once it is established: the next can
    begin at once (I10)."""
    room = settled.maximum - len(view.state.members)
    if view.state.established is None or room <= 0 or _succeeded(view):
        return []
    new = kept_out.newcomers(settled, view, joined(settled, view, sight), sight.round_age)
    limit = 0.0 if len(new) >= room else GROWTH_SECONDS
    if not new or view.waits.left(PeerWait.GROWTH, view.state.number, limit) > 0:
        return []
    return new


def _succeeded(view: RoundView) -> bool:
    return any(m.state == MemberState.SUCCEEDED for m in view.state.members)


def _over(settled: Settled, view: RoundView, sight: Sight, found: list[Finding]) -> Settled:
    """The round is over; so is the run if others have succeeded, or if this keeps happening early."""
    best = found[0]
    for one in found:
        best = one if better(one.cause, best.cause) else best
    if _succeeded(view):
        return _closed(settled, view, Outcome.FAILED, f"{best.message}, after others had succeeded")
    settled = kept_out.take_lost(kept_out.count(settled, sight.round_age), view, sight)
    step = _step(view, sight)
    planned = best.cause in PLANNED or any(sight.taken_away(m.key) for m in view.state.members)
    early = early_ends(settled.early_ends, planned, sight.round_age, step, settled.best_step)
    settled = replace(settled, early_ends=early, best_step=max(settled.best_step, step), message=best.message)
    if early >= MOST_EARLY_ENDS:
        text = f"{in_a_row(early, 'round')} ended within a minute, without progress. The last: {best.message}"
        return _closed(settled, view, Outcome.FAILED, text, best.cause.value)
    over = replace(settled, state=ended(view.state, best.cause.value))
    return over if sight.unreadable else leave_out(over, sight.highest_seen(settled.run))


def _step(view: RoundView, sight: Sight) -> int:
    """The highest step that this round has reported."""
    steps = [
        peer.progress.step
        for m in view.state.members
        if (peer := sight.has(m.name, m.key)) is not None
        and peer.progress is not None
        and peer.progress.nonce == view.state.nonce
    ]
    return max(steps, default=0)


def _closed(settled: Settled, view: RoundView, outcome: Outcome, message: str, cause: str = "") -> Settled:
    state = replace(view.state, phase=Phase.CLOSED.value, cause=cause or view.state.cause)
    return replace(settled, state=state, outcome=outcome.value, message=message)
