"""Participants that could not reach their round, while the others can do without them. Pure.

Such a pod announces itself again and again. If each of its announcements ended the round of the others, none
would ever train: it is left out of the next rounds, for a minute at first, then for twice as long each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from elasticjob.core.pauses import exponential
from elasticjob.peers.pacing import EARLY_SECONDS
from elasticjob.peers.records import KeptOut
from elasticjob.peers.settled import Settled
from elasticjob.peers.sight import Peer, Sight
from elasticjob.peers.waiting import PeerWait
from elasticjob.rounds.state import MemberState, RoundState, RoundView

LONGEST_SECONDS = 600.0


def seconds(one: KeptOut) -> float:
    """How long rounds of the others go on, in all, before one ends for this one."""
    return exponential(EARLY_SECONDS, LONGEST_SECONDS, one.times)


def take_lost(settled: Settled, view: RoundView, sight: Sight) -> Settled:
    """Keep those out that this round has lost although they live, and forget those that are not there."""
    there = {p.key for p in sight.peers.values()}
    known = {one.key: one for one in settled.kept_out if one.key in there}
    for m in view.state.members:
        lost = m.state == MemberState.LOST and m.key not in sight.gone
        if lost and sight.has(m.name, m.key) is not None:
            before = known.get(m.key)
            if before is None:
                known[m.key] = KeptOut(m.key)
            elif before.due:
                known[m.key] = KeptOut(m.key, before.times + 1)
    return replace(settled, kept_out=tuple(known.values()))


def take_established(settled: Settled, state: RoundState) -> Settled:
    """The members have met: their paths are well again."""
    members = {m.key for m in state.members}
    return replace(settled, kept_out=tuple(one for one in settled.kept_out if one.key not in members))


def without(settled: Settled, joined: Mapping[str, Peer]) -> Mapping[str, Peer]:
    """Those of the ``joined`` that may be in the next round: all, if the others are too few without them."""
    out = {one.key for one in settled.kept_out if not one.due}
    rest = {name: peer for name, peer in joined.items() if peer.key not in out}
    return rest if len(rest) >= settled.minimum else joined


def count(settled: Settled, age: float | None) -> Settled:
    """A round is over after ``age`` seconds, if that is known: those that were kept out of it for long enough
    may be in the next one."""
    passed = int(age or 0)

    def counted(one: KeptOut) -> KeptOut:
        waited = one.waited + passed
        return one if one.due else replace(one, waited=waited, due=waited >= seconds(one))

    return replace(settled, kept_out=tuple(map(counted, settled.kept_out)))


def newcomers(settled: Settled, view: RoundView, joined: Mapping[str, Peer], age: float | None) -> list[str]:
    """Those for which a running round, which is ``age`` seconds old, may end: without the ones that are still
    kept out."""
    out = {one.key: one for one in settled.kept_out}
    number = view.state.number

    def left(one: KeptOut) -> float:
        passed = one.waited + (age or 0.0)
        return view.waits.left(PeerWait.KEPT_OUT, f"{number} {one.key}", seconds(one), passed)

    return sorted(name for name, peer in joined.items() if peer.key not in out or left(out[peer.key]) <= 0)


def let_in(settled: Settled, keys: Collection[str]) -> Settled:
    """These may be in the next round."""
    return replace(
        settled, kept_out=tuple(replace(one, due=one.due or one.key in keys) for one in settled.kept_out)
    )


def suspects(settled: Settled, state: RoundState) -> tuple[str, ...]:
    """Names of the members of a new round that it loses at their first failure to reach it."""
    known = {one.key for one in settled.kept_out}
    return tuple(m.name for m in state.members if m.key in known or m.name in state.unarrived)
