"""What is really so: who lives, who is in which round, which rounds have trained. The oracle's rules are P1
to P8 of docs/internals/peers.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from elasticjob.contract.fields import RecordError
from elasticjob.contract.round_record import Outcome
from elasticjob.peers.settled import Settled
from tests.peers.api import Stored
from tests.simulation.kernel import Kernel

EARLY_ENDS, EARLY_SECONDS = 10, 61.0
"""A run fails after so many rounds that were over within this time, as seen by its coordinator."""
LATELY_SECONDS, LATE_SECONDS = 1.0, 5.0
"""How long what has happened to a pod may take to be seen, and while events are late: a round may be
published meanwhile."""


class Violation(AssertionError):
    """A rule was broken. ``rule`` is its name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass
class Round:
    """A round that was published: ``inside`` are the processes that are in it now, by rank."""

    settled: Settled
    published: float
    inside: dict[int, Any] = field(default_factory=dict)
    stopped: dict[int, float] = field(default_factory=dict)
    """When these ranks have left it, or died."""
    succeeded: set[int] = field(default_factory=set)
    established: bool = False
    left: bool = False
    """Whether one member has left it, by itself or by dying: from then on it trains no more."""
    excused: bool = False
    """Whether a user has deleted the Lease of a member, or overwritten the round Lease: it counts as over,
    and may train all the same."""
    unsaid: bool = False
    """The round Lease was deleted or set back, and has not said since then that there was this round."""
    forgotten: bool = False
    """So it is, and no process that lives has seen this round."""
    ended: float | None = None
    """When its end was written."""
    disturbed: bool = False
    """Whether something has happened to a member of it that may end it."""

    @property
    def size(self) -> int:
        return len(self.settled.state.members)

    @property
    def whole(self) -> bool:
        """Whether all members are in it."""
        return self.established and len(self.inside) == self.size

    def silent_for(self, rank: int, now: float) -> float:
        """For how long this rank has sent no heartbeat."""
        process = self.inside.get(rank)
        if rank in self.succeeded:
            return 0.0
        if process is None:
            return now - self.stopped.get(rank, self.published)
        return now - process.frozen_at if process.frozen else 0.0

    def wake(self) -> None:
        """Something has happened that its members notice by themselves."""
        for process in self.inside.values():
            process.look_around()

    @property
    def trains(self) -> bool:
        """Whether it must not be replaced."""
        return self.established and not self.left and not self.excused


class Truth:
    """The oracle of one history. ``wipes`` are the times at which the round Lease was deleted by a user."""

    def __init__(self, kernel: Kernel, lease: str) -> None:
        self.kernel = kernel
        self.lease = lease
        self.rounds: dict[tuple[str, int, str], Round] = {}
        self.newest: dict[str, Settled] = {}
        self._disturbed: dict[str, float] = {}
        """When something has happened to these pods last."""
        self.knows: Callable[[Settled], bool] = lambda _settled: True
        """Set by the history: whether a process that lives has seen this record."""
        self.heard: Callable[[Round], bool] = lambda _one: True
        """Set by the history: whether the leader's report that this round is established is stored."""
        self.ails: Callable[[str], bool] = lambda _name: False
        """Set by the history: whether something is wrong with the pod of this name, or a path from it."""
        self.is_lossy: Callable[[], bool] = lambda: False
        """Set by the history: whether requests are lost or late, or were a moment ago."""
        self.began: Callable[[Stored], None] = lambda _stored: None
        """Set by the history: a round was published with this."""
        self._users = self._set_back = False
        self.wiped = float("-inf")
        self.lease_changed = 0.0
        self.closed: dict[str, str] = {}

    # -- writes of the round Lease -------------------------------------------------------------------------

    @contextmanager
    def by_a_user(self) -> Iterator[None]:
        """What is written meanwhile is no participant's, and not judged."""
        self._users = True
        yield
        self._users = False

    def patches(self, before: Stored, version: str) -> None:
        """Judge the precondition of a write that the API server carries out."""
        if before.name == self.lease and not self._users and version != str(before.version):
            what = f"version {version}" if version else "no version"
            raise Violation("P1", f"a write asked for {what}, and version {before.version} was there")

    def wrote(self, before: Stored | None, after: Stored) -> None:
        """Judge a write."""
        if after.name != self.lease:
            return
        self.lease_changed = self.kernel.now
        if self._users:
            self._set_back = True
            return
        new = self.read(after)
        if new is None:
            return
        old = self.read(before) if before is not None else None
        anew, self._set_back = old is None or self._set_back, False
        self._forget(new, anew)
        for one in self.rounds.values() if before is not None and old is None else ():
            one.excused |= one.settled.run != new.run  # a user has overwritten whose Lease it was
        r = new.state
        by = after.holder or "none"
        text = f"{new.run} {r.number} {r.phase} {r.cause} {[m.name for m in r.members]} by {by}"
        self.kernel.say(f"record  {text}: {new.message[:80]}")
        if old is not None and old.run != new.run:
            self._replaces_run(old, new)
        elif old is not None and new.order < old.order:
            raise Violation("P2", f"the record went back from {old.order} to {new.order}")
        elif old is not None and new.order == old.order and new.state.nonce != old.state.nonce:
            raise Violation("P2", f"round {r.number} was published twice")
        self._judge_end(old, new)
        if r.active and (new.run, r.number, r.nonce) not in self.rounds:
            self._published(new, after)
        if new.closed:
            self._closes(new)
            self.closed[new.run] = new.outcome
            for one in self.rounds.values():
                one.left = one.left or one.settled.run == new.run
        if new.run not in self.newest or new.order >= self.newest[new.run].order:
            self.newest[new.run] = new

    def _forget(self, new: Settled, anew: bool) -> None:
        """Which rounds nobody knows of any more. ``anew``: the record was deleted or set back, and this one
        perhaps says less than processes have seen, which may die before they say it."""
        for one in self.rounds.values():
            r, its = new.state, one.settled.state
            said = new.run == one.settled.run and (r.number > its.number or r.nonce == its.nonce)
            one.unsaid = (anew or one.unsaid) and not said
            one.forgotten = one.forgotten or (one.unsaid and not self.knows(one.settled))

    def _closes(self, new: Settled) -> None:
        """A run is over as it is said: all have succeeded, or some, and another was lost after them."""
        one = self.rounds.get((new.run, new.state.number, new.state.nonce))
        well = len(one.succeeded) if one is not None else 0
        if new.outcome == Outcome.COMPLETE and well < len(new.state.members):
            raise Violation("end", f"it was closed as complete when {well} had succeeded")
        if "others had succeeded" in new.message:
            if not well:
                raise Violation("end", f"it was closed when none had succeeded: {new.message}")
        elif new.outcome == Outcome.FAILED and self._early_ends(new.run) < EARLY_ENDS:
            raise Violation("end", f"it was closed after fewer than {EARLY_ENDS} early ends: {new.message}")

    def _early_ends(self, run: str) -> int:
        """How many rounds of this run have ended early, of as many as may."""
        now, rounds = self.kernel.now, [one for one in self.rounds.values() if one.settled.run == run]
        ends = (one.published + EARLY_SECONDS - (now if one.ended is None else one.ended) for one in rounds)
        return sum(left > 0 for left in ends)

    def _published(self, new: Settled, after: Stored) -> None:
        r = new.state
        if not new.minimum <= len(r.members) <= new.maximum:
            raise Violation("bounds", f"round {r.number} has {len(r.members)} members")
        known = {m.id for one in self.rounds.values() if not one.forgotten for m in one.settled.state.members}
        if known & {m.id for m in r.members}:
            raise Violation("I4", f"round {r.number} has an id that was used before")
        training = [one for one in self.rounds.values() if one.trains]
        for one in training:
            raise Violation(
                "P3", f"round {r.number} was published while round {one.settled.state.number} trains"
            )
        since = self.kernel.now - (LATE_SECONDS if self.is_lossy() else LATELY_SECONDS)
        lately = {name for name, at in self._disturbed.items() if at > since}
        disturbed = any(m.name in lately or self.ails(m.name) for m in r.members)
        self.rounds[new.run, r.number, r.nonce] = Round(new, self.kernel.now, disturbed=disturbed)
        self.began(after)

    def _judge_end(self, old: Settled | None, new: Settled) -> None:
        """P4: a round that trains ends only for something that has happened."""
        if old is None or not old.state.active or (new.run, new.order) == (old.run, old.order):
            return
        one = self.rounds.get((old.run, old.state.number, old.state.nonce))
        if one is not None and one.ended is None:
            one.ended = self.kernel.now
        if one is None or not one.trains or new.state.cause == "ScaledUp" or new.closed:
            return
        ails = self.is_lossy() or self.ails(one.settled.state.members[0].name)
        by_silence = "did not report" in new.message
        if not self.heard(one) and (ails or not by_silence):
            return  # it trains, and its leader cannot say so, or others had said before that it could not
        if not one.disturbed and self.kernel.now - self.wiped > 60.0:
            raise Violation("P4", f"round {old.state.number} was ended for {new.state.cause}: {new.message}")

    def _replaces_run(self, old: Settled, new: Settled) -> None:
        """P8: no run's record is taken while it trains."""
        one = self.rounds.get((old.run, old.state.number, old.state.nonce))
        if not old.closed and one is not None and one.trains:
            raise Violation("P8", f"run {new.run} has replaced run {old.run}, which trains")

    def read(self, stored: Stored) -> Settled | None:
        """What the round Lease says; None: it cannot be read."""
        try:
            return Settled.parse(stored.annotations.get("round", ""), stored.annotations.get("state", ""))
        except RecordError:
            return None

    # -- what processes do ---------------------------------------------------------------------------------

    def enter(self, run: str, number: int, nonce: str, rank: int, process: Any) -> Round:
        """A process arrives at the leader of its round."""
        one = self.rounds[run, number, nonce]
        one.inside[rank] = process
        if len(one.inside) == one.size and not one.established and not one.left:
            one.established = True
            self.kernel.say(f"trains  round {number}")
            for other in () if one.excused else self.rounds.values():
                if other is not one and other.trains:
                    raise Violation("P3", f"rounds {other.settled.state.number} and {number} train at once")
                later = other.settled.run == run and other.settled.state.number >= number
                if other is not one and other.established and later and not other.forgotten:
                    raise Violation("P2", f"round {number} trains after round {other.settled.state.number}")
        return one

    def leave(self, one: Round, rank: int) -> None:
        """A process leaves its round, or dies."""
        one.inside.pop(rank, None)
        one.stopped[rank] = self.kernel.now
        one.left = True
        one.wake()

    def disturb(self, name: str) -> None:
        """Something has happened to the process in this pod that may end its round, or one that is being
        published."""
        self._disturbed[name] = self.kernel.now
        for one in self.rounds.values():
            if any(m.name == name for m in one.settled.state.members):
                one.disturbed = True

    def excuse(self, name: str) -> None:
        """A user has deleted the Lease of this pod, where pods are not in sight: that counts as its end."""
        for one in self.rounds.values():
            one.excused |= any(m.name == name for m in one.settled.state.members)
