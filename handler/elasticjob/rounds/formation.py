"""How the next round forms: what to wait for, when it begins, and with which members. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from elasticjob.contract.round_record import Phase
from elasticjob.rounds.candidates import Defer, Expected, FormRound, decide
from elasticjob.rounds.causes import PLANNED, Cause
from elasticjob.rounds.ranks import Candidate
from elasticjob.rounds.sizes import ANY, Sizes
from elasticjob.rounds.state import Finding, Member, MemberState, RoundState, RoundView
from elasticjob.rounds.waits import RoundWait

UNREACHABLE_GRACE_SECONDS = 3.0
"""How long a member that was reported unreachable may still rejoin when there are too few without it."""

DOUBTFUL_LEADER_GRACE_SECONDS = 15.0
"""That time if the leader that has reported it is in doubt itself: its report alone excludes no participant
that only needs the time that the handler gives workers to stop."""

RANK_HELD_SECONDS = 2.0
"""How long the rank of a member that is on its way is kept for it: members rejoin within milliseconds of each
other, but a spare has joined already."""

PLANNED_RANK_HELD_SECONDS = 15.0
"""That time after a planned change: every member ran a moment ago, and has only to stop its workers."""


def expect_members(view: RoundView) -> tuple[list[Expected], list[Finding]]:
    """The members of the last round that are on their way, and those that are lost because they have not
    rejoined in time."""
    r, limit = view.state, view.limits.rejoin_timeout
    awaited = any(m.state in (MemberState.MEMBER, MemberState.UNREACHABLE) for m in r.members)
    left = view.left(RoundWait.REJOIN, limit, awaited)
    expected, found, lost = [], [], {}
    for m in r.members:
        if m.state in (MemberState.MEMBER, MemberState.UNREACHABLE) and left == 0:
            text = (
                f"{m.name} (group rank {m.group_rank}) did not rejoin within {limit} s (rejoinTimeoutSeconds)"
            )
            view.judged_unheard.add(m.name)
            found.append(Finding(Cause.DID_NOT_REJOIN, text, m))
            lost[m.id] = replace(m, state=MemberState.LOST.value, message=text)
        elif m.state == MemberState.MEMBER:
            held = PLANNED_RANK_HELD_SECONDS if r.cause in PLANNED else RANK_HELD_SECONDS
            rank_held = max(0.0, held - (limit - left))
            expected.append(Expected(m.name, left, "not rejoined yet", m.group_rank, rank_held))
    view.set_members(lost)
    return expected, found


def last_call(view: RoundView, enough: bool) -> float:
    """How many more seconds to wait for newcomers on their way, once enough have joined.

    Before the first round the time counts from the state: a restart of the caller does not start it again.
    """
    r = view.state
    first = r.number == 0 or r.resumed
    since = (r.quorum_time or view.wall) if first and enough else None
    view.set(quorum_time=since)
    limit = view.limits.initial_last_call_timeout if first else view.limits.last_call_timeout
    if not enough:
        return float(limit)
    if since is not None:
        passed = (view.wall - since).total_seconds()
        return view.waits.left(RoundWait.FIRST_LAST_CALL, r.number, limit, passed)
    return view.waits.left(RoundWait.LAST_CALL, r.number, limit)


def form(
    view: RoundView,
    candidates: Sequence[Candidate],
    expected: Sequence[Expected],
    minimum: int,
    wanted: int,
    sizes: Sizes = ANY,
) -> FormRound | Defer:
    """Whether the next round can begin, and with which members in which order. If too few are left without
    the unreachable members, those are soon lost."""
    if len(candidates) + len(expected) < minimum:
        _expire_unreachable(view)
    decision = decide(candidates, expected, minimum, wanted, sizes)
    if isinstance(decision, Defer) and decision.seconds is not None:
        view.waits.wake(decision.seconds)
    return decision


def _expire_unreachable(view: RoundView) -> None:
    r, leader = view.state, view.state.leader
    doubtful = (
        leader is not None and leader.state != MemberState.UNREACHABLE and leader.name in r.ineligible_leaders
    )
    limit = DOUBTFUL_LEADER_GRACE_SECONDS if doubtful else UNREACHABLE_GRACE_SECONDS
    unreachable = [m for m in r.members if m.state == MemberState.UNREACHABLE]
    if view.left(RoundWait.UNREACHABLE, limit, bool(unreachable)) > 0:
        return
    view.judged_unheard.update(m.name for m in unreachable)
    view.set_members({m.id: replace(m, state=MemberState.LOST.value) for m in unreachable})


def published(state: RoundState, chosen: Sequence[Member], nonce: str, wall: datetime) -> RoundState:
    """The next round, with these members in rank order. It keeps what may show a broken path: failed
    establishments, participants that were not reached, and those reported unreachable."""
    return replace(
        state,
        number=state.number + 1,
        phase=Phase.ACTIVE.value,
        nonce=nonce,
        members=tuple(replace(m, group_rank=rank) for rank, m in enumerate(chosen)),
        cause="",
        start=wall,
        established=None,
        resumed=False,
        quorum_time=None,
    )


def ended(state: RoundState, cause: str) -> RoundState:
    """The round when it is over; its members rejoin."""
    failures = state.establish_failures + 1 if state.established is None else 0
    return replace(state, phase=Phase.BROKEN.value, cause=cause, establish_failures=failures)
