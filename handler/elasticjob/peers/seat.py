"""A participant's seat at the table: it follows the coordinator, or is it.

What it hears goes in, and ``step`` says what to do next; it does no I/O and reads no clock. Each write of the
round Lease carries the version that it was decided on (P1), so that a coordinator that was replaced can
publish nothing, however late its clock is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elasticjob.contract.fields import MAX_INT32, RecordError
from elasticjob.contract.limits import Limits
from elasticjob.peers.election import ORDER_SECONDS, Standing, next_claim, next_probe, probe_pause
from elasticjob.peers.forming import awaited
from elasticjob.peers.other_run import OtherRun
from elasticjob.peers.own import OwnWords
from elasticjob.peers.plan import look
from elasticjob.peers.round_lease import (
    Done,
    Identity,
    ListAgain,
    Read,
    Rest,
    RoundLease,
    Step,
    TryPort,
    Write,
)
from elasticjob.peers.run import Run
from elasticjob.peers.settled import (
    FORMING_RENEW,
    RUNNING_RENEW,
    Settled,
    begun_after,
    following,
    made_again,
    number_of,
)
from elasticjob.peers.sight import Sight
from elasticjob.peers.silence import DEAF_SECONDS, Hearing
from elasticjob.rounds.waits import WaitKey, Waits

LONGEST_REST = 5.0
CLOSE_SECONDS = 5.0
"""How long a coordinator that has succeeded waits for the others to succeed, before it leaves the rest to
them."""
UNEXPLAINED_SECONDS = 1.0
"""How long a coordinator waits for the next round until it says why."""
MADE_AGAIN_SECONDS = 0.5
"""How long the coordinator has to make a deleted round Lease again before another participant does."""
UNSURE_SECONDS = 3.0
"""That time if the deletion itself was not seen: another may know a later record."""
BLIND_SECONDS = 30.0
"""How long a coordinator renews the round Lease although it does not see the participants: their list may
take longer than others wait for a coordinator."""
LOOKERS, LOOK_SECONDS = 8, 5.0
"""Of the pods that wait for the name of another run, how many look at its pods at once, and how much later
the next ones do. Each looks at all Leases of the name, and mostly the first ones find that it is over."""
MOST_CONFLICTS = 2
CONFLICT_SECONDS = 0.2
"""The pause after a conflict, between what was read and the next write."""


class Seat:
    """``spread`` is this participant's own place, from 0 to 5, among those that are in no round, ``turn``
    that from 0 among the pods of its run. All times are monotonic seconds of its process."""

    def __init__(self, run: Run, me: Identity, limits: Limits, spread: int = 0, turn: int = 0) -> None:
        self.run = run
        self.me = me
        self._identity = str(me)
        self._limits = limits
        self._spread, self._turn = spread, turn
        self.own = OwnWords()
        self.lease: RoundLease | None = None
        """None: not seen yet, or deleted."""
        self.settled: Settled | None = None
        """What ``lease`` says, perhaps of another run; None: it can't be read."""
        self.unreadable = ""
        """Why ``lease`` can't be read."""
        self.newest: Settled | None = None
        """The newest that was ever seen of this run: it never goes back (P2)."""
        self.replaced = ""
        """The pod whose place as coordinator this participant has taken."""
        self._highest = 0
        """The highest number in a Lease that can't be read."""
        self._holder = Identity("", "")
        """That of the Lease when it was last seen."""
        self._followed = False
        """Whether another run has been in this one's place since this one was last seen: it has had rounds,
        or has seen that this one is over."""
        self._other_since: float | None = None
        """Since when another run has been in this one's place; None: none is."""
        self._newest_since: float | None = None
        self._changed = 0.0
        self._missing: tuple[float, bool, bool] | None = None
        self._current: Settled | None = None
        self._began: Mapping[WaitKey, float] = {}
        self._renewed = 0.0
        self._blind: float | None = None
        """Since when this coordinator does not see the others; None: it does."""
        self._hearing = Hearing()
        self._listed_for: object = None
        """The state of the round Lease for which the participants were listed again."""
        self._explained = False
        self._reread = False
        self._conflicts = 0
        self._not_before = 0.0
        self._ending: float | None = None
        self._tried, self._tries = float("-inf"), 0
        self._refuses = ""
        self._ended = ""

    # -- what it hears -------------------------------------------------------------------------------------

    def hear(self, lease: RoundLease, now: float) -> None:
        """The round Lease, from a watch or an answer."""
        if self.lease is not None and (lease.older_than(self.lease) or lease.version == self.lease.version):
            return
        if self.lease is None or lease.holder != self.lease.holder:
            self._current = self._blind = None
            self._refuses = self._ended = ""
        self.lease, self._changed, self._missing, self._tries = lease, now, None, 0
        self._holder = Identity.parse(lease.holder)
        try:
            self.settled, self.unreadable = Settled.parse(lease.record, lease.state), ""
        except RecordError as error:
            self.settled, self.unreadable = None, str(error)
            self._highest = max(self._highest, number_of(lease.record, lease.state))
            return
        other = self.other_run
        self._other_since = None if other is None else now if self._other_since is None else self._other_since
        self._followed = other is not None and (self._followed or not other.never_began)
        if self._current is not None and self.settled.order > self._current.order:
            self._current = None  # a user has set it forward
        self._remember(self.settled, now)

    def hear_read(self, lease: RoundLease, now: float) -> None:
        """The answer to ``Read``. After two conflicts in a row it is the truth, also if it looks older: the
        versions of etcd go back when it is restored from a backup."""
        self._hearing.succeed(now)
        if self._conflicts >= MOST_CONFLICTS:
            self.lease = None
        self.hear(lease, now)

    def hear_deleted(self, last: RoundLease, now: float) -> None:
        """The watch says that the round Lease was deleted, and how it was: nothing can have been missed."""
        if self.lease is not None and last.older_than(self.lease):
            return
        mine = self.coordinates
        self.hear(last, now)
        self.lease, self._missing = None, (now, True, mine)

    def hear_absent(self, now: float) -> None:
        """There is no round Lease; it may have changed before it was deleted."""
        mine = self.coordinates
        self.lease = None
        if self._missing is None:
            self._missing = (now, False, mine)

    def hear_written(self, lease: RoundLease, written: Write, now: float) -> None:
        """A write has succeeded."""
        if written.claim or not written.version:
            self.replaced = "" if self.lease is None else Identity.parse(self.lease.holder).pod
            self._began, self._hearing = {}, Hearing(now)
        self._hearing.succeed(now)
        self._renewed, self._reread, self._conflicts = now, False, 0
        self._explained = bool(written.waiting)
        self.hear(lease, now)
        if self.unreadable:
            self._not_before = now + UNEXPLAINED_SECONDS
        if self.lease is not None and self.lease.version == lease.version:
            self._current = written.settled

    def hear_conflict(self) -> None:
        """A write was refused, because the Lease has changed or exists: read it."""
        self._current, self._reread = None, True
        self._conflicts += 1

    def hear_nothing(self, now: float, pause: float) -> None:
        """A request has failed: whether it was carried out is not known."""
        self._current, self._reread = None, True
        self._not_before = now + pause
        self._hearing.fail(now)

    def hear_port(self, pod: str, refuses: bool, now: float) -> None:
        """The answer to ``TryPort``."""
        self._tried, self._tries = now, self._tries + 1
        if refuses:
            self._refuses = pod

    def hear_ended(self, pod: str, uid: str) -> None:
        """The pod with this name and UID has ended."""
        if self.lease is not None and self.lease.holder == str(Identity(pod, uid)):
            self._ended = self.lease.holder

    def end(self, now: float) -> None:
        """This participant ends."""
        if self._ending is None:
            self._ending = now

    # -- what others ask -----------------------------------------------------------------------------------

    @property
    def coordinates(self) -> bool:
        """Whether this participant is the coordinator, as far as it knows."""
        return self.lease is not None and self.lease.holder == self._identity and not self._foreign()

    def needs_sight(self, now: float) -> bool:
        """Whether it has to see the participants: to coordinate, or, in its turn, to follow another run of
        this name."""
        other, since = self.other_run, self._other_since
        if self.coordinates or other is None or other.settled.closed or since is None:
            return self.coordinates
        return now >= since + self._turn // LOOKERS * LOOK_SECONDS

    @property
    def other_run(self) -> OtherRun | None:
        """The other run of this name that has the round Lease, or had it last."""
        foreign = self.settled is not None and self.settled.run != self.run.id
        return OtherRun(self.settled, self._holder) if foreign and self.settled is not None else None

    @property
    def obstacle(self) -> OtherRun | None:
        """That other run, if this one has to wait until its pods are gone."""
        other = self.other_run
        if other is None or other.settled.closed or self.ended_before:
            return None
        return None if other.gives_way(self.newest) and not self._followed else other

    @property
    def _known(self) -> Settled | None:
        """What this participant goes by: what it has decided last as coordinator, or what the Lease says."""
        return self._current or self.settled

    @property
    def unsure(self) -> bool:
        """Whether another may know a later record than the present one: it was made again, or it is the
        first, perhaps in the place of one that was deleted."""
        return self._known is not None and (self._known.unsure or not self._known.state.number)

    @property
    def ended_before(self) -> str:
        """The outcome of this run if another one has followed it; "" if that is not known."""
        other = self.other_run
        return dict(other.settled.former).get(self.run.id, "") if other is not None else ""

    def round_age(self, now: float) -> float | None:
        """How old the present round is; None if it was published before this process saw the run."""
        return now - self._newest_since if self._newest_since is not None else None

    @property
    def deputy_of(self) -> Identity | None:
        """The coordinator whose pod this participant should watch: it is the lowest rank beside it."""
        lease, settled = self.lease, self.settled
        if lease is None or not lease.holder or settled is None or self.coordinates or self._foreign():
            return None
        holder = Identity.parse(lease.holder)
        others = [m for m in settled.state.members if m.name != holder.pod]
        return holder if others and (others[0].name, others[0].key) == (self.me.pod, self.me.uid) else None

    # -- what it does --------------------------------------------------------------------------------------

    def step(self, now: float, sight: Sight | None) -> Step:
        """What to do next. ``sight`` is None while this participant does not see all others."""
        if self._over(now):
            return self._release(now)
        if now < self._not_before:
            return Rest(self._not_before - now)
        if self._reread:
            return self._read(now)
        if self.lease is None:
            return self._without(now, sight)
        if self.coordinates:
            return self._lead(now, sight)
        return self._follow(now, sight)

    def _read(self, now: float) -> Read:
        self._reread = False
        self._not_before = now + CONFLICT_SECONDS if self._conflicts else 0.0
        return Read()

    def _over(self, now: float) -> bool:
        """Whether it ends, and need not wait for others to succeed."""
        if self._ending is None:
            return self.own.leaving
        settled = self._known
        if (
            not self.coordinates
            or settled is None
            or settled.closed
            or self.own.finished != settled.state.nonce
        ):
            return True
        return now - self._ending > CLOSE_SECONDS

    def _release(self, now: float) -> Step:
        settled = self._known
        tried_long = self._ending is not None and now - self._ending > CLOSE_SECONDS + 1.0
        if not self.coordinates or settled is None or settled.closed or tried_long:
            return Done() if self._ending is not None else Rest(LONGEST_REST)
        if now < self._not_before:
            return Rest(self._not_before - now)
        if self._reread:
            return self._read(now)
        assert self.lease is not None
        return Write(settled, version=self.lease.version, release=True, transitions=self.lease.transitions)

    def _without(self, now: float, sight: Sight | None) -> Step:
        """Make the round Lease, or make it again. That of another run is left to that run, as it is while the
        Lease is there."""
        if (self.newest is not None and self.newest.closed) or self.ended_before:
            return Rest(LONGEST_REST)
        other = self.other_run
        if other is not None and not self._is_over(other, sight):
            return Rest(1.0)
        if self.obstacle is not None and self._first_list_for(self._missing):
            return ListAgain()
        if self.newest is None:
            return Write(self._in_place(replace(self._first(), unsure=True), sight), claim="it is the first")
        since, sure, mine = self._missing or (now, False, False)
        sure = sure and other is None
        wait = 0.0 if mine else MADE_AGAIN_SECONDS + self._place() * ORDER_SECONDS
        if not sure:
            wait += UNSURE_SECONDS if self.newest.state.active else 2 * UNSURE_SECONDS
        if now < since + wait:
            return Rest(since + wait - now)
        return Write(
            self._in_place(made_again(self.newest, sure), sight), claim="the round Lease was deleted"
        )

    def _follow(self, now: float, sight: Sight | None) -> Step:
        assert self.lease is not None
        if self._behind():
            wait = self._changed + self._place() * ORDER_SECONDS - now
            return Rest(wait) if wait > 0 else self._claim("the round Lease was set back")
        if self._foreign():
            return self._replace_other_run(now, sight)
        standing = self._standing()
        claim, probe = next_claim(standing), max(next_probe(standing), self._tried + probe_pause(self._tries))
        if claim.at <= now:
            return self._claim(claim.why)
        if probe <= now:
            return TryPort(Identity.parse(self.lease.holder).pod)
        return Rest(max(0.02, min(claim.at - now, probe - now, LONGEST_REST)))

    def _claim(self, why: str, sight: Sight | None = None) -> Write:
        lease, newest = self.lease, self.newest
        assert lease is not None
        settled = self.settled
        if newest is not None and (settled is None or self._behind() or self._foreign()):
            settled = made_again(newest, sure=False)
        if settled is None or settled.run != self.run.id:
            settled = self._first()
        transitions = min(lease.transitions + 1, MAX_INT32)
        settled = self._in_place(settled, sight)
        return Write(settled, version=lease.version, claim=why, transitions=transitions)

    def _replace_other_run(self, now: float, sight: Sight | None) -> Step:
        """Another run of this name: its round Lease is taken once it is closed, or none of its pods is there
        any more (P3). If it has had no round, a run that has goes on: its Lease was deleted."""
        other, newest = self.other_run, self.newest
        if other is None or (newest is not None and newest.closed) or self.ended_before:
            return Rest(LONGEST_REST)
        if not self._is_over(other, sight):
            if sight is None or not sight.is_behind(self.lease) or now <= self._changed + DEAF_SECONDS:
                return Rest(1.0)
            self._not_before = now + DEAF_SECONDS
            # The round Lease may have been deleted, unheard.
            return ListAgain() if self._first_list_for(self.lease) else Read()
        wait = self._changed + self._spread * ORDER_SECONDS - now
        return Rest(wait) if wait > 0 else self._claim("the run before is over", sight)

    def _is_over(self, other: OtherRun, sight: Sight | None) -> bool:
        """Whether this run may take the place of the other. Members that came with the newest version of the
        round Lease are perhaps not in a sight that is older."""
        seen = sight is not None and not sight.is_behind(self.lease) and not other.may_go_on(sight)
        return seen or self.obstacle is None

    def _first_list_for(self, state: object) -> bool:
        """Whether it asks for the first time to list the participants again in this state of the Lease."""
        before, self._listed_for = self._listed_for, state
        return before is not state

    def _in_place(self, settled: Settled, sight: Sight | None) -> Settled:
        """What a new coordinator writes: in the place of another run it remembers how that has ended. The
        times of reports are by the clock of the coordinator before (P6)."""
        other = self.other_run
        settled = replace(settled, state=replace(settled.state, unreachable_reports=()))
        return following(settled, other.at_its_end(sight)) if other is not None else settled

    def _lead(self, now: float, sight: Sight | None) -> Step:
        """One look, and a write if something has changed or others wait for a sign of life."""
        lease = self.lease
        assert lease is not None
        settled = self._known
        if settled is None or self._behind():
            return self._claim("the round Lease cannot be read" if settled is None else "it was set back")
        if sight is None:
            self._blind = now if self._blind is None else self._blind
            if now - self._blind > BLIND_SECONDS:
                return Rest(LONGEST_REST)
            text = f"{self.me.pod} coordinates, and its list of the participants is under way"
            return self._show_life(settled, lease, now, text, LONGEST_REST)
        self._blind = None
        if self._hearing.is_deaf(lease, sight, now):
            return ListAgain()
        if settled.closed:
            return Rest(LONGEST_REST)
        waits = Waits(self._began, now)
        decision = look(settled, sight, waits)
        self._began = waits.began
        if self._hearing.must_list(decision.unheard, sight, now):
            return ListAgain()
        if wait := self._hearing.wait(decision.unheard, sight, now):
            text = f"{self.me.pod} coordinates, and could not reach the API server a moment ago"
            return self._show_life(settled, lease, now, text, wait)
        self._current = decision.settled
        published = self.settled
        renew = float(RUNNING_RENEW if decision.settled.state.trains else FORMING_RENEW)
        renew = UNEXPLAINED_SECONDS if decision.waiting and not self._explained else renew
        due = self._renewed + renew if awaited(decision.settled, sight) else now + LONGEST_REST
        if published is None or decision.settled.record() != published.record() or due <= now:
            return Write(decision.settled, decision.waiting, lease.version, transitions=lease.transitions)
        wake = waits.wake_after if waits.wake_after is not None else LONGEST_REST
        return Rest(max(0.02, min(wake, due - now, LONGEST_REST)), decision.probes)

    def _show_life(self, settled: Settled, lease: RoundLease, now: float, text: str, longest: float) -> Step:
        """Renew the round Lease without a decision. If the next in the order took over, it would know no
        more."""
        due = self._renewed + (RUNNING_RENEW if settled.state.active else FORMING_RENEW)
        if settled.closed or now < due:
            return Rest(min(longest, LONGEST_REST if settled.closed else due - now))
        return Write(settled, text, lease.version, transitions=lease.transitions)

    # -- helpers -------------------------------------------------------------------------------------------

    def _first(self) -> Settled:
        """Where no record of this run can be read: P2 holds by what this participant has seen otherwise."""
        announced = self.own.announced
        seen = announced.seen(self.run.id) if announced is not None else 0
        return begun_after(Settled.first(self.run, self._limits), max(seen, self._highest))

    def _remember(self, settled: Settled, now: float) -> None:
        newest = self.newest
        if settled.run != self.run.id or (newest is not None and settled.order < newest.order):
            return
        if newest is None or (newest.state.number, newest.state.nonce) != (
            settled.state.number,
            settled.state.nonce,
        ):
            self._newest_since = None if newest is None and settled.state.active else now
        self.newest = settled

    def _foreign(self) -> bool:
        return self.settled is not None and self.settled.run != self.run.id

    def _behind(self) -> bool:
        """Whether the Lease has an older record than this participant has seen: it was made by one that has
        not."""
        shown, newest = self.settled, self.newest
        if shown is None or newest is None or shown.run != newest.run:
            return False
        return shown.order < newest.order

    def _standing(self) -> Standing:
        lease, settled = self.lease, self.settled or self.newest or Settled.first(self.run, self._limits)
        assert lease is not None
        holder, r = Identity.parse(lease.holder), settled.state
        return Standing(
            changed=self._changed,
            held=bool(lease.holder),
            mine=holder.pod == self.me.pod and holder.uid != self.me.uid,
            over=settled.closed and self.settled is not None,
            active=r.active,
            member=any(m.name == self.me.pod for m in r.members),
            place=self._place(),
            accused=self.own.accuses_since(settled, holder.pod),
            waits=self.own.waits_since(settled),
            ended=bool(self._ended) and self._ended == lease.holder,
            refuses=self._refuses == holder.pod,
        )

    def _place(self) -> int:
        """Its place in the order in which participants claim: members by rank, then the others."""
        settled, lease = self.settled or self.newest, self.lease
        members = settled.state.members if settled is not None else ()
        holder = Identity.parse(lease.holder).pod if lease is not None else ""
        order = [m.name for m in members if m.name != holder]
        return order.index(self.me.pod) if self.me.pod in order else len(order) + self._spread
