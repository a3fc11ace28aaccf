"""A second caller of the round kernel: participants that share a board and nothing else.

There are no pods, no Leases and no operator. Each process announces itself on the board; the first of those
that are alive decides for all of them. Processes die, come back under their name, and stand still.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import RoundReport
from elasticjob.rounds.candidates import Expected, FormRound
from elasticjob.rounds.causes import Cause, better
from elasticjob.rounds.establishment import take_established
from elasticjob.rounds.formation import ended, expect_members, form, last_call, published
from elasticjob.rounds.judgement import judge
from elasticjob.rounds.ranks import Candidate
from elasticjob.rounds.state import Finding, Heard, Member, MemberState, RoundState, RoundView
from elasticjob.rounds.waits import WaitKey, Waits
from tests.simulation.kernel import Host, Kernel, Script

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
GONE_SECONDS = 2.0
"""After how long all peers know that a process has ended."""
POLL_SECONDS = 0.25
LOOK_SECONDS = 0.5


@dataclass
class Entry:
    """What one process says of itself. ``key`` is its incarnation, ``seen`` the last round that it knew when
    it announced itself."""

    key: str
    id: str = ""
    seen: int = 0
    renewed: float = 0.0
    report: RoundReport | None = None


@dataclass
class Board:
    """What all processes see. ``arrived`` and ``heartbeats`` are the data of the round's leader."""

    state: RoundState = field(default_factory=RoundState)
    entries: dict[str, Entry] = field(default_factory=dict)
    began: dict[WaitKey, float] = field(default_factory=dict)
    arrived: set[tuple[int, int]] = field(default_factory=set)
    heartbeats: dict[tuple[int, int], float] = field(default_factory=dict)
    history: list[RoundState] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


class Peers:
    """So many processes, of which at least ``minimum`` are needed for a round."""

    def __init__(self, seed: int, count: int, minimum: int) -> None:
        self.kernel = Kernel(seed)
        self.board = Board()
        self.limits = Limits(5, 3, 10, 5, heartbeat_timeout=4)
        self.count, self.minimum = count, minimum
        self.processes: dict[str, Host] = {}
        self._made = 0
        for number in range(count):
            self.start(f"peer-{number}")
        self._decide()

    def start(self, name: str) -> None:
        """A new process under this name."""
        self._made += 1
        host = Host(self.kernel, name)
        self.processes[name] = host
        self.board.entries[name] = Entry(f"key-{self._made}")
        host.spawn(self._live(self.board.entries[name]))

    def kill(self, name: str) -> None:
        """The process ends at once; all peers know it after a moment."""
        self.processes[name].die()
        entry = self.board.entries[name]

        def forget() -> None:
            if self.board.entries.get(name) is entry:
                del self.board.entries[name]

        self.kernel.after(GONE_SECONDS, forget)

    def in_round(self) -> list[str]:
        """The living members of a round that is established."""
        r = self.board.state
        if not r.active or r.established is None:
            return []
        entries = self.board.entries
        return [m.name for m in r.members if m.name in entries and entries[m.name].id == m.id]

    def _live(self, entry: Entry) -> Script:
        board, kernel = self.board, self.kernel
        while True:
            entry.seen = board.state.number
            entry.id = f"{entry.key}-{entry.seen}-{kernel.rng.getrandbits(24):06x}"
            entry.report = None
            member: Member | None = None
            while member is None:
                entry.renewed = kernel.now
                yield POLL_SECONDS
                if board.state.active and board.state.number > entry.seen:
                    member = next((m for m in board.state.members if m.id == entry.id), None)
                    if member is None:
                        break  # the round has begun without it: an announcement is for one round
            if member is not None:
                yield from self._train(board.state, member, entry)

    def _train(self, r: RoundState, member: Member, entry: Entry) -> Script:
        """One round: arrive at the leader, then send heartbeats and watch those of others."""
        board, kernel = self.board, self.kernel
        began = kernel.now
        board.arrived.add((r.number, member.group_rank))
        while board.state.active and board.state.number == r.number:
            entry.renewed = kernel.now
            board.heartbeats[r.number, member.group_rank] = kernel.now
            entry.report = self._report(r, member, began) or entry.report
            yield POLL_SECONDS

    def _report(self, r: RoundState, member: Member, began: float) -> RoundReport | None:
        board, now = self.board, self.kernel.now
        if board.state.established is None and member.group_rank == 0:
            unarrived = tuple(
                m.group_rank for m in r.members if (r.number, m.group_rank) not in board.arrived
            )
            if not unarrived:
                return RoundReport(r.nonce, established=True)
            return (
                RoundReport(r.nonce, unarrived_ranks=unarrived)
                if now - began > self.limits.establish_timeout
                else None
            )
        silent = [
            m.group_rank
            for m in r.members
            if now - board.heartbeats.get((r.number, m.group_rank), began) > self.limits.heartbeat_timeout
        ]
        if member.group_rank == 0 and silent:
            return RoundReport(r.nonce, established=True, silent_ranks=tuple(silent))
        return RoundReport(r.nonce, leader_lost=True) if 0 in silent and member.group_rank else None

    def _decide(self) -> None:
        """One look by the peer that decides."""
        self.kernel.after(LOOK_SECONDS, self._decide)
        board, now = self.board, self.kernel.now
        r = board.state
        waits = Waits(board.began, now)
        view = RoundView(r, self.limits, waits, BEGAN + timedelta(seconds=now), self._hear)
        view.set_members({m.id: self._seen(m) for m in r.members})
        if r.active:
            self._watch(view)
        else:
            self._form(view)
        board.state, board.began = view.state, waits.began

    def _hear(self, member: Member) -> Heard | None:
        entry = self.board.entries.get(member.name)
        if entry is None or entry.key != member.key:
            return None
        ours = entry.report is not None and entry.report.nonce == self.board.state.nonce
        return Heard(entry.report if ours else None, silent_seconds=self.kernel.now - entry.renewed)

    def _seen(self, member: Member) -> Member:
        entry = self.board.entries.get(member.name)
        if member.state == MemberState.LOST:
            return member
        if entry is None or entry.key != member.key:
            return replace(member, state=MemberState.LOST, message=f"{member.name} has ended")
        return replace(member, state=MemberState.LEFT) if entry.id != member.id else member

    def _watch(self, view: RoundView) -> None:
        take_established(view)
        gone = [m for m in view.state.members if m.state in (MemberState.LOST, MemberState.LEFT)]
        found = judge(view, bool(gone))
        if gone or found:
            self._end(view, found)
        elif view.state.established is not None and self._joined(view.state):
            self._end(view, [Finding(Cause.SCALED_UP, "a process has joined")])

    def _end(self, view: RoundView, found: list[Finding]) -> None:
        cause = ""
        for one in found:
            cause = one.cause if better(one.cause, cause) else cause
        self.board.ends.append(cause or "a member has ended")
        view.state = ended(view.state, cause)

    def _joined(self, r: RoundState) -> dict[str, Entry]:
        """Those that have announced themselves for the round after this one."""
        lost = {m.key for m in r.members if m.state == MemberState.LOST}
        spent = {m.id for m in r.members}
        return {
            name: e
            for name, e in self.board.entries.items()
            if e.id and e.id not in spent and e.seen >= r.number and e.key not in lost
        }

    def _form(self, view: RoundView) -> None:
        judge(view, known=True)
        expected, _ = expect_members(view)
        r, entries = view.state, self.board.entries
        ranks = {m.key: m.group_rank for m in r.members}
        fresh = self._joined(r)
        candidates = [
            Candidate(e.id, name, None, ranks.get(e.key), name not in r.ineligible_leaders)
            for name, e in sorted(fresh.items())
        ]
        left = last_call(view, len(candidates) >= self.minimum)
        known = {m.name for m in r.members}
        expected += [Expected(name, left, "it starts") for name in entries if name not in {*fresh, *known}]
        decision = form(view, candidates, expected, self.minimum, self.count)
        if not isinstance(decision, FormRound):
            return
        chosen = [Member(c.id, c.name, fresh[c.name].key, rank) for rank, c in enumerate(decision.members)]
        view.state = published(view.state, chosen, f"n{r.number + 1}", view.wall)
        self.board.history.append(view.state)


def play(seed: int, faults: int = 6) -> Peers:
    """A history: processes die, come back and stand still for some minutes, and are then left in peace."""
    peers = Peers(seed, 5, 2)
    rng = peers.kernel.rng
    peers.kernel.run(20.0)
    for _ in range(faults):
        name = rng.choice(sorted(peers.processes))
        host = peers.processes[name]
        if host.alive and rng.random() < 0.4:
            host.freeze()
            peers.kernel.after(peers.kernel.between(1.0, 20.0), host.thaw)
        elif host.alive:
            peers.kill(name)
            peers.kernel.after(peers.kernel.between(GONE_SECONDS, 30.0), _back, peers, name)
        peers.kernel.run(peers.kernel.between(0.5, 40.0))
    peers.kernel.run(240.0)
    return peers


def _back(peers: Peers, name: str) -> None:
    with contextlib.suppress(KeyError):
        if not peers.processes[name].alive:
            peers.start(name)
