"""A simulated pod: its agent, the writer of its Lease, and the real ``Seat`` with what
``elasticjob.coordination`` does around it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from elasticjob.api.errors import ApiError, Conflict, NotFound
from elasticjob.contract.fields import RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.reports import FailureReport, RoundReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.coordination.directory import NEVER, changed_at
from elasticjob.coordination.reading import ended_well, taken_away
from elasticjob.coordination.source import PAUSE_SECONDS
from elasticjob.core.participant import AnnounceAgain, Enter, Membership, Participant, Stop
from elasticjob.core.pauses import exponential
from elasticjob.leases.writer import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS
from elasticjob.peers.round_lease import Done, Identity, ListAgain, Read, Rest, Step, TryPort, Write
from elasticjob.peers.run import Run
from elasticjob.peers.seat import LOOKERS, Seat
from elasticjob.peers.sight import Sight
from tests.peers.api import Stored, Watch
from tests.peers.pods import uid_of
from tests.peers.reading import Known, endpoint_of, read
from tests.peers.truth import Round
from tests.simulation.kernel import Host, Script

if TYPE_CHECKING:
    from tests.peers.history import History

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
HEARTBEAT = 0.5
QUIET = 10.0
"""How long a process sleeps where only an event, which wakes it, can change what it does."""


class Process(Host):
    """One agent in one pod. ``skew``: its wall clock is off by so many seconds."""

    def __init__(self, history: History, run: Run, pod: str, uid: str, slot: int) -> None:
        super().__init__(history.kernel, pod)
        self.history, self.run, self.uid, self.slot = history, run, uid, slot
        self.api, self.truth, rng = history.api, history.truth, history.kernel.rng
        self.skew = rng.choice([0.0, 0.0, -3600.0, 86_400.0]) if history.skewed else rng.choice([0.0] * 4)
        self.core = Participant(run.id)
        self.turn = slot * LOOKERS // 2
        self.seat = Seat(run, Identity(pod, uid), history.limits, rng.randint(0, 5), self.turn)
        self.place: tuple[Round, int] | None = None
        self.exit = ""
        self.address_gone = False
        """It has died, and nothing answers in its place."""
        self.frozen_at = self.hampered_at = 0.0
        self.waits_since: float | None = None
        self._want: dict[str, str] = {"run": run.id, "slot": str(slot), "pod": pod}
        self._dirty = False
        self._known: dict[str, Known] | None = None
        self._before: tuple[dict[str, Known], float] = ({}, 0.0)
        self._list: Watch | None = None
        self._failed_at = NEVER
        self._refused: dict[str, str] = {}
        self._failures = {"write": 0, "read": 0}
        """How many of the seat's requests have failed in a row."""
        self._fails = self._gives_up = False
        self._reported: RoundReport | None = None
        self._watch = Watch(self.api, self, history.lease, self._seen)
        self._writer = self.spawn(self._write_own())
        self._agent = self.spawn(self._live())
        self._peers = self.spawn(self._coordinate())

    def die(self) -> None:
        """kill -9."""
        super().die()
        self._watch.close()
        if self._list is not None:
            self._list.close()
        if self.place is not None:
            self.truth.leave(*self.place)

    def freeze(self) -> None:
        """SIGSTOP."""
        super().freeze()
        self.frozen_at = self.kernel.now
        self.look_around()
        if self.place is not None:
            self.place[0].wake()

    def look_around(self) -> None:
        """Its agent looks at the others now."""
        self._agent.wake()

    def list_hangs(self, seconds: float) -> None:
        """What it sees as coordinator comes to nothing, while its writes arrive."""
        if self._list is not None:
            self._list.break_off(seconds)

    def fail(self) -> None:
        """A worker fails."""
        self._fails = True
        self._agent.wake()

    def give_up(self) -> None:
        """It ends without success: nothing came of its round, or of its wait for one."""
        self._fails = self._gives_up = True
        self._agent.wake()

    def hang(self) -> bool:
        """If it leads a round, it says that training hangs."""
        if self.place is None or self.place[1] != 0 or not self.place[0].established:
            return False
        nonce = self.place[0].settled.state.nonce
        self._say(report=RoundReport(nonce, established=True, hung=True, message="no progress").dump())
        return True

    # -- the agent -----------------------------------------------------------------------------------------

    def _say(self, **annotations: str) -> None:
        self.seat.own.take(annotations, self.kernel.now)
        self._want.update(annotations)
        self._dirty = True
        self._writer.wake()
        self._peers.wake()

    def _live(self) -> Script:
        while True:
            self._announce()
            action = None
            self.waits_since = self.kernel.now
            while not isinstance(action, (Enter, Stop)):
                if self._gives_up:
                    yield from self._end("gave up")
                    return
                action = self.core.take_action()
                if isinstance(action, AnnounceAgain):
                    self._announce()
                elif not isinstance(action, (Enter, Stop)):
                    yield QUIET
            self.waits_since = None
            if isinstance(action, Stop):
                yield from self._end("complete" if action.complete else "failed")
                return
            yield from self._be_in(action.membership)
            if self.exit:
                return

    def _end(self, how: str) -> Script:
        """It says that it ends, waits a moment until that is written, and ends."""
        record = self.core.leaving()
        if record is not None:
            self._say(participant=record.dump())
        for _ in range(5):
            if self._dirty:
                yield 0.2
        self.exit = how
        self.seat.end(self.kernel.now)
        self._peers.wake()

    def _announce(self) -> None:
        endpoint = f"{self.name}:{1000 + next(self.history.ids)}"
        self.history.endpoints[endpoint] = self
        record = self.core.announce(f"{self.uid}-{next(self.history.ids)}", endpoint, True, 1)
        self._say(participant=record.dump())

    def _be_in(self, m: Membership) -> Script:
        """One round, from the barrier to its end for this process."""
        kernel, rank = self.kernel, m.group_rank
        began = kernel.now
        leader = m.leader_endpoint.partition(":")[0]
        while self.history.apart(self.name, leader) is not None:
            if min(kernel.now - began, self._watch.healthy_seconds) > m.limits.establish_timeout:
                self._report_once(RoundReport(m.nonce, leader_lost=True))
            yield HEARTBEAT
            if self.core.end_reason():
                return
        if self._reported is not None and self._reported.nonce == m.nonce:
            self._report_once(RoundReport(m.nonce))  # it accuses the leader no longer
        one = self.truth.enter(m.job_uid, m.number, m.nonce, rank, self)
        self.place = (one, rank)
        self._fails = self._gives_up
        while not self.core.end_reason() and not self._fails:
            if one.whole and self.history.finishing:
                yield from self._finish(one, m)
                if self.exit:
                    return
                break
            self._report(one, m, began)
            troubled = self.history.splits or any(p.frozen for p in one.inside.values())
            calm = one.whole and not troubled
            yield QUIET if calm else HEARTBEAT
        self.truth.leave(one, rank)
        self.place = None
        if self._fails:
            self._say(
                failure=FailureReport(
                    m.number, rank, "a worker failed", job_uid=m.job_uid, nonce=m.nonce
                ).dump()
            )
        yield kernel.between(0.01, 2.0)  # its workers stop

    def _finish(self, one: Round, m: Membership) -> Script:
        """Its workers have succeeded; it ends when all others have, too, or the round is over."""
        record = self.core.succeeded()
        assert record is not None
        one.succeeded.add(m.group_rank)
        self._say(participant=record.dump(), finished=m.nonce)
        while not self.core.end_reason():
            if len(one.succeeded) == one.size and one.whole:
                self.exit = "succeeded"
                while self._dirty:
                    yield 0.2
                self.seat.end(self.kernel.now)
                self._peers.wake()
                return
            yield HEARTBEAT

    def _report(self, one: Round, m: Membership, began: float) -> None:
        """What the leader says of the others, and each of the leader, as ``elasticjob.watch`` does."""
        now, limits = self.kernel.now, m.limits
        report = None
        if m.group_rank == 0 and not one.established:
            missing = tuple(rank for rank in range(one.size) if rank not in one.inside)
            if missing and min(now - began, self._watch.healthy_seconds) > limits.establish_timeout:
                report = RoundReport(m.nonce, unarrived_ranks=missing)
        elif m.group_rank == 0:
            silent = tuple(r for r in range(1, one.size) if self._lost(one, r, limits))
            report = RoundReport(m.nonce, established=True, silent_ranks=silent)
        elif self._lost(one, 0, limits):
            refused = one.inside.get(0) is None
            report = RoundReport(m.nonce, leader_lost=True, connection_refused=refused)
        if report is not None:
            self._report_once(report)

    def _report_once(self, report: RoundReport) -> None:
        if report != self._reported:
            self._reported = report
            self._say(report=report.dump())

    def _lost(self, one: Round, rank: int, limits: Limits) -> bool:
        """A port that accepts and is not served yet is waited for, as ``elasticjob.watch.establish`` does."""
        now, process, timeout = self.kernel.now, one.inside.get(rank), limits.heartbeat_timeout
        if process is None and rank in one.stopped:
            return one.silent_for(rank, now) > 2.5
        if process is None:
            waited = min(one.silent_for(rank, now), self._watch.healthy_seconds)
            return waited > limits.establish_timeout
        apart = self.history.apart(self.name, process.name)
        return max(one.silent_for(rank, now), 0.0 if apart is None else now - apart) > timeout

    # -- its Lease -----------------------------------------------------------------------------------------

    def _write_own(self) -> Script:
        failures = 0
        while True:
            while not self._dirty:
                yield self._renewal()
                self._dirty = True
            want, self._dirty = dict(self._want), False
            owners = frozenset({self.uid})
            action = lambda: self.api.apply(self.name, want, holder=self.uid, owners=owners)  # noqa: B023, E731
            try:
                yield self.api.call(self, action)
                failures = 0
            except ApiError:
                self._dirty = True
                failures += 1
                pause = exponential(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS, failures)
                until = self.kernel.now + self.kernel.between(0.8 * pause, 1.2 * pause)
                while self.kernel.now < until:  # what is said meanwhile waits, too
                    yield until - self.kernel.now

    def _renewal(self) -> float:
        membership = self.core.membership
        if membership is None:
            return 2.0
        return LEADER_RENEW_SECONDS if membership.group_rank == 0 else MEMBER_RENEW_SECONDS

    # -- the seat ------------------------------------------------------------------------------------------

    def _seen(self, what: list[Stored] | Stored) -> None:
        for stored in what if isinstance(what, list) else [what]:
            if stored.deleted:
                self.seat.hear_deleted(stored.as_round(), self.kernel.now)
                continue
            self.seat.hear(stored.as_round(), self.kernel.now)
            self._observe(stored)
        self._peers.wake()

    def _observe(self, stored: Stored) -> None:
        try:
            record = RoundRecord.parse(stored.annotations.get("round", ""))
        except RecordError:
            return
        if self.core.observe(record):
            self._agent.wake()

    def _list_failed(self) -> None:
        """As ``Directory`` takes it: who is silent starts again with the next list."""
        self._known, self._before, self._failed_at = None, ({}, 0.0), self.kernel.now
        self._peers.wake()

    def _listed(self, what: list[Stored] | Stored) -> None:
        now = self.kernel.now
        if isinstance(what, list):
            self._known = {s.name: self._known_as(s, now) for s in what}
            self._before = ({}, 0.0)
        elif self._known is not None and what.deleted:
            self._known.pop(what.name, None)
        elif self._known is not None:
            self._known[what.name] = Known(what, now, now)
        self._peers.wake()

    def _known_as(self, stored: Stored, now: float) -> Known:
        """As ``Directory`` has what a list shows."""
        known, (before, given_up) = (self._known or {}).get(stored.name), self._before
        if known is not None and known.stored == stored:
            return known
        if stored.name in before and before[stored.name].stored == stored:
            there = before[stored.name]
            return Known(stored, changed_at(there.at, given_up, now), there.changed)
        return Known(stored, now)

    def _coordinate(self) -> Script:
        while True:
            looks = self.seat.needs_sight(self.kernel.now)
            if looks and self._list is None:
                self._list = Watch(self.api, self, "", self._listed, self._list_failed)
            elif not looks and self._list is not None:
                self._list.close()
                self._list = self._known = None
                self._before = ({}, 0.0)
            holder = self.seat.deputy_of if self.history.deputies else None
            if holder is not None and self.history.pod_ended(holder.uid, self.kernel.now):
                self.seat.hear_ended(holder.pod, holder.uid)
            step = self.seat.step(self.kernel.now, self._sight())
            if isinstance(step, Done):
                self.exit = self.exit or "done"
                return
            yield from self._do(step)

    def _do(self, step: Step) -> Script:
        kernel, seat = self.kernel, self.seat
        if isinstance(step, Rest):
            for uid, endpoint in step.probes.items():
                if self.history.refuses(endpoint, self.name):
                    self._refused[uid] = endpoint
                    step = Rest(min(step.seconds, 0.1))
            yield step.seconds
            return
        what = "write" if isinstance(step, Write) else "read"
        try:
            if isinstance(step, Write):
                yield from self._write_round(step)
            elif isinstance(step, Read):
                answer = yield self.api.call(self, lambda: self.api.read(self.history.lease))
                seat.hear_read(answer.as_round(), kernel.now)
                self._observe(answer)
            elif isinstance(step, ListAgain):
                if self._list is not None:
                    self._list.close()
                if self._known is not None:
                    self._before = (self._known, kernel.now)
                self._known = None
                self._list = Watch(self.api, self, "", self._listed, self._list_failed)
            elif isinstance(step, TryPort):
                yield from self._try_port(step.pod)
        except NotFound:
            seat.hear_absent(kernel.now)
        except Conflict:
            seat.hear_conflict()
        except ApiError:
            self._failures[what] += 1
            pause = exponential(*PAUSE_SECONDS, self._failures[what])
            seat.hear_nothing(kernel.now, kernel.between(0.8 * pause, 1.2 * pause))
        else:
            self._failures[what] = 0

    def _write_round(self, step: Write) -> Script:
        """As ``PeerSource._write``."""
        if step.claim:
            self.kernel.say(f"claim   {self.name}: {step.claim}")
        fields = {
            "holder": "" if step.release else str(self.seat.me),
            "annotations": {
                "round": step.settled.record(step.waiting).dump(),
                "state": step.settled.rest().dump(),
            },
        }
        name = self.history.lease
        if step.version:
            action = lambda: self.api.patch(name, step.precondition, **fields)  # noqa: E731
        else:
            action = lambda: self.api.create(name, **fields)  # noqa: E731
        answer = yield self.api.call(self, action)
        self.seat.hear_written(answer.as_round(), step, self.kernel.now)
        self._observe(answer)

    def _try_port(self, pod: str) -> Script:
        try:
            stored = yield self.api.call(self, lambda: self.api.read(pod))
            refuses = self.history.refuses(endpoint_of(stored.annotations), self.name)
        except NotFound:
            refuses = True
        self.seat.hear_port(pod, refuses, self.kernel.now)

    def _older(self) -> frozenset[str]:
        lease = self.history.api.leases.get(self.history.lease)
        known = (self._known or {}).items()
        return frozenset(n for n, k in known if lease is not None and k.stored.created < lease.created - 1.0)

    def _sight(self) -> Sight | None:
        if self._known is None or self.history.pods_unseen:
            return None
        now = self.kernel.now
        found = read(self._known, self.run.id, now)
        refused = {
            p.key: "its port refuses"
            for p in found["peers"].values()
            if self._refused.get(p.key) == p.record.endpoint
        }
        ended = self.history.ended_pods(now) if self.history.pods_in_sight else {}
        bodies = self.history.bodies(now) if self.history.pods_in_sight else None
        replaced, shown = self._known.get(self.seat.replaced), self._known.get(self.history.lease)
        suspected = replaced is not None and replaced.changed == NEVER and self.seat.replaced != self.name
        return Sight(
            **found,
            wall=BEGAN + timedelta(seconds=now + self.skew),
            nonce=f"{self.kernel.rng.getrandbits(40):010x}",
            gone={**refused, **ended},
            live_pods=self.history.live_pods() if self.history.pods_in_sight else None,
            suspects=frozenset({self.seat.replaced} if suspected else ()),
            older=self._older() if self.seat.unsure else frozenset(),
            round_age=self.seat.round_age(now),
            failed=now - self._failed_at,
            finished=frozenset(uid_of(body) for body in bodies or () if ended_well(body)),
            staying=frozenset(uid_of(b) for b in bodies if not taken_away(b)) if bodies is not None else None,
            round_lease=shown.stored.as_round() if shown is not None else None,
        )
