"""An agent: torchrun with our handler around the real participant core, as far as others can tell.

Its threads are the handler's: the main thread (torch's), the writer of its Lease, the watch of the
round, and the heartbeats. The round's store is a dictionary in the leader's agent.
"""

from __future__ import annotations

from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.relay import RelayReport
from elasticjob.contract.reports import (
    DrainReport,
    FailureReport,
    ProgressReport,
    RoundReport,
    StartsReport,
)
from elasticjob.core.participant import AnnounceAgain, Enter, Membership, Participant, Stop
from elasticjob_operator.plan.state.model import Pod
from tests.simulation.api import Api, Client, Item, Key, Watch
from tests.simulation.ground import Ground, Network, RoundKeys, WorkerEnd
from tests.simulation.heartbeats import Heartbeats
from tests.simulation.kernel import Kernel, Script, Thread
from tests.simulation.lease_writer import LeaseWriter
from tests.simulation.meeting import Meeting
from tests.simulation.relay import Relay

POLL_SECONDS = 0.1
WORKER_STOP_SECONDS = 10.0
LINGER_SECONDS = 30.0
SLOW_DRAIN = 0.1
"""How probable it is that workers take long to come to their next step,"""
ENDS_FIRST = 0.5
"""and that those which have less to train come to their end before the step at which all stop."""
HOOK_SECONDS = 20
"""For how long a pod's preStop hook waits, of its grace period,"""
HOOK_ASK_SECONDS = 10
"""for how long while its operator says nothing,"""
HOOK_REPLACE_SECONDS = 15
"""and for how long more while it says that the next pod starts."""


class Agent(Client):
    """One process in one pod."""

    def __init__(
        self, kernel: Kernel, api: Api, network: Network, ground: Ground, pod: Pod, job_uid: str
    ) -> None:
        super().__init__(kernel, pod.name)
        self.api = api
        self.pod = pod
        self.uid = pod.uid
        self.exit_code = 137
        self.exit_reason = ""
        self.prepares = False
        """Its container's command does something else, before torchrun."""
        self.mute_until = 0.0
        """Until then the API server refuses its writes."""
        self.hangs = False
        """It stands still for ever, and nothing is wrong with its machine."""
        self.goes_on = False
        """Its torchrun has ended well, and its container's command has not."""
        self._network = network
        self._ground = ground
        self._pinned = job_uid
        self._ports = 4000
        self.stage = ground.stage
        """Which torchrun of the container's command this is."""
        self.in_round: Membership | None = None
        """Ground truth: the round whose workers run here."""
        self._main: Thread = self.spawn(self._torch())
        self._begin()

    def _begin(self) -> None:
        """Another torchrun: a process that knows nothing of the one before."""
        self.core = Participant(self._pinned)
        self.stores: dict[str, RoundKeys] = {}
        """The stores that this agent serves, by round prefix."""
        self.endpoints: list[str] = []
        self.offered = ""
        """The endpoint that it has announced last."""
        self._barrier_at = 0.0
        """When this agent left the barrier of its round."""
        self._failed: WorkerEnd | None = None
        self._draining: Membership | None = None
        self._takes_part: Membership | None = None
        self._ends_first: Membership | None = None
        """The round that drains, and whose step to stop at these workers do not come to: they have less to
        train."""
        self.in_rendezvous = True
        self.passed = False
        """Whether it has passed the exit barrier of its round."""
        self._lease = LeaseWriter(self, self._ground, self._progress)
        self._watch_since: float | None = None
        self.watch = Watch(
            self.api,
            self,
            lambda key: key[0] == "round",
            self._take,
            self._relist,
            self._connected,
            may_be_old=True,
        )
        self.heartbeats = Heartbeats(self, self._network, self._ground, self._lease)
        self.relay = Relay(self, self.kernel, self._ground)
        self.meeting = Meeting(self, self._network, self._ground, self._lease)

    def _end_torchrun(self) -> None:
        """Torchrun has ended, the container's command goes on."""
        self._lease.close()
        self.heartbeats.close()
        self.relay.close()
        self.watch.close()
        self.core = Participant(self._pinned)
        self.stores, self.endpoints, self.offered = {}, [], ""
        self.in_rendezvous = False

    # -- from outside --------------------------------------------------------------------------------------

    def reaches_api(self) -> bool:
        """See ``Client``."""
        return self._network.reaches_api(self)

    def end(self, code: int, reason: str = "") -> None:
        """The process ends; ``reason`` is what its kubelet knows beside the exit code."""
        if self.alive:
            self.exit_code, self.exit_reason = code, reason
            self.die()

    def die(self) -> None:
        """The process is gone, with its workers and its stores."""
        if not self.alive:
            return
        super().die()
        self.watch.close()
        self._leave()
        self.kernel.say(f"{self.name} ended with {self.exit_code}")
        self._network.agent_ended(self)

    def terminate(self) -> None:
        """SIGTERM. Torch runs our handler only inside ``next_rendezvous``."""
        if self.frozen:
            self.when_thawed(self.terminate)
            return
        if self.prepares:
            self.kernel.after(self.kernel.between(0.05, 1.0), self.end, 0)
        elif self.in_rendezvous:
            record = self.core.leaving()
            if record is not None:
                self._lease.write(record=record)
            self.kernel.after(self.kernel.between(0.05, 1.0), self.end, 143)
        else:
            self.kernel.after(self.kernel.between(0.05, 3.0), self.end, 1)

    def hook_waits(self, seconds: float) -> bool:
        """Whether the pod's preStop hook goes on, which has run for so long."""
        m = self.in_round
        if m is None or self._takes_part is not m or self.core.end_reason():
            return False
        replaces = self.pod.replace_seconds + HOOK_ASK_SECONDS
        if self._draining is m:
            return seconds < replaces + HOOK_SECONDS
        return seconds < (replaces if self.core.replaces() else HOOK_ASK_SECONDS)

    def look(self) -> None:
        """Something in the world has changed that heartbeats may tell."""
        self.heartbeats.look()

    def write_relay(self, report: RelayReport | None) -> None:
        """Pass on what others have said."""
        self._lease.write(relay=report)

    def unwrite_relay(self) -> None:
        """Without a write of its own."""
        self._lease.voice = self._lease.voice._replace(relay=None)

    def wake(self) -> None:
        """Something has changed that its main thread waits for."""
        self._main.wake()

    @property
    def failing(self) -> bool:
        """Whether a worker has failed and the others are still being stopped."""
        return self.in_round is not None and self._failed is not None

    def fail_worker(self, m: Membership, code: int | None = 1, echo: bool = False) -> None:
        """A worker of this round dies, if it still runs; the first one of an agent counts."""
        if self.alive and self.in_round is m and not self.frozen and self._failed is None:
            self._failed = WorkerEnd(self.kernel.now, code, echo, bool(self.core.end_reason()))
            self._ground.worker_failed(self, m, self._failed)
            self.wake()

    # -- the watch -----------------------------------------------------------------------------------------

    def _take(self, key: Key, item: Item | None, version: int) -> None:
        del key, version
        if item is None:
            self.core.unpublish()
        elif self.core.observe(item.value):
            self.wake()
            m = self.in_round
            if m is not None and self._ground.behaviour.drains and self.core.drain_asked():
                self._begin_drain(m)
            if m is not None and self.core.end_reason():
                self.kernel.after(WORKER_STOP_SECONDS, self._kill_workers, m)

    def _relist(self, items: dict[Key, Item], version: int) -> None:
        for key, item in items.items():
            self._take(key, item, version)

    def _connected(self, seconds: float) -> None:
        if seconds > 1.0 or self._watch_since is None:
            self._watch_since = self.kernel.now

    def watch_healthy_seconds(self) -> float:
        """For how long its watch has been without trouble."""
        if not self.watch.good or self._watch_since is None:
            return 0.0
        return self.kernel.now - self._watch_since

    def _begin_drain(self, m: Membership) -> None:
        if self._draining is not m:
            self._draining = m
            self.spawn(self._drain(m))

    def _drain(self, m: Membership) -> Script:
        """Workers stop at their next step, some of them not in time; the leader says when all have."""
        if self._ground.has_less(self) and self.kernel.rng.random() < ENDS_FIRST:
            self._ends_first = m
            self.wake()
        slow = self.kernel.rng.random() < SLOW_DRAIN
        yield self.kernel.between(20.0, 90.0) if slow else self.kernel.between(0.05, 3.0)
        while self.in_round is m and not self.core.end_reason() and self._failed is None:
            _, keys = self.meeting.keys(m)
            if keys is not None and keys.finished and not self._ground.behaviour.uneven:
                return  # they have come to their end before that step
            if keys is not None:
                if self._ends_first is not m and m.group_rank not in keys.finished:
                    keys.stopped.add(m.group_rank)
                if m.group_rank == 0 and keys.stopped and len(keys.stopped | keys.finished) == m.size:
                    self._lease.write(drain=DrainReport(m.nonce, True, 1))
                    return
            yield 0.2

    def _prepare(self, m: Membership, never: float) -> Script:
        """All members' interpreters for the next start are ready; that goes with the next write."""
        if self.kernel.rng.random() >= never:
            yield self.kernel.between(1.0, 45.0)
            if self.in_round is m:
                self._lease.voice = self._lease.voice._replace(starts=StartsReport(m.nonce))

    def _kill_workers(self, m: Membership) -> None:
        """What is left of the workers ten seconds after the end of the round."""
        if self.in_round is m and self.alive and not self.frozen:
            self._leave()

    # -- what it reports -----------------------------------------------------------------------------------

    def _progress(self) -> ProgressReport | None:
        """How far training has come, if this agent leads a round whose workers tell."""
        m = self.in_round
        if m is None or m.group_rank != 0:
            return self._lease.voice.progress
        return self._progress_in(m)

    def _progress_in(self, m: Membership) -> ProgressReport | None:
        steps = self._ground.steps(m) if self._ground.behaviour.steps else None
        if steps is None:
            return self._lease.voice.progress
        waited, trained = steps.began - self._barrier_at, steps.grew - steps.began
        return ProgressReport(
            m.nonce, steps.first, steps.highest, max(0, round(waited * 1000)), max(0, round(trained * 1000))
        )

    def find_hung(self, m: Membership, seconds: float) -> None:
        """The leader has seen no step for so long."""
        if self.frozen:
            self.when_thawed(lambda: self.find_hung(m, seconds))
        elif self.alive and self.in_round is m and not self.core.end_reason():
            self.kernel.say(f"{self.name}: no step for {seconds:.0f} s")
            report = RoundReport(
                m.nonce,
                True,
                silent_ranks=self.heartbeats.silent,
                hung=True,
                silent_milliseconds=round(seconds * 1000),
                message=f"no step for {seconds:.0f} s",
            )
            self._lease.write(report=report)

    # -- torch's main thread -------------------------------------------------------------------------------

    def _torch(self) -> Script:
        until = self.kernel.now + self._ground.before_torchrun()
        while self.kernel.now < until:
            self.prepares = True
            yield until - self.kernel.now
        self.prepares = False
        yield self.kernel.between(0.5, 2.0)
        failure: FailureReport | None = None
        while True:
            self.in_rendezvous = True
            membership = yield from self._next_rendezvous(failure)
            if membership is None:
                return
            self.in_rendezvous = False
            outcome = yield from self._train(membership)
            if outcome is True:
                if not (yield from self._go_on()):
                    return
                failure = None
                continue
            failure = outcome
            self.relay.leave(failure)

    def _go_on(self) -> Script:
        """What the container's command does after torchrun. Returns whether it runs torchrun again."""
        after = self._ground.after_torchrun(self)
        if after.seconds or after.again:
            self._end_torchrun()
            self.goes_on = True
            yield after.seconds
            self.goes_on = False
        if after.again:
            self.stage += 1
            self._begin()
            yield self.kernel.between(0.5, 2.0)
            return True
        if after.code:
            self._ground.command_failed(self)
        self.end(after.code)
        return False

    def _announce(self, failure: FailureReport | None) -> None:
        self._ports += 1
        self.offered = f"{self.pod.ip}:{self._ports}"
        record = self.core.announce(f"{self.kernel.rng.getrandbits(64):016x}", self.offered, False, 1)
        self._lease.write(record=record, failure=self._lease.voice.failure if failure is None else failure)
        self._lease.renew_every(5.0)

    def _next_rendezvous(self, failure: FailureReport | None) -> Script:
        """Returns the membership, or None when the process has ended."""
        while True:
            self._announce(failure)
            failure = None
            while True:
                step = self.core.take_action()
                if isinstance(step, Enter):
                    break
                if isinstance(step, Stop):
                    leaving = self.core.leaving()
                    if leaving is not None:
                        self._lease.write(record=leaving)
                    yield from self._lease.flush()
                    self.end(0 if step.complete else 1)
                    return None
                if self._lease.superseded:
                    self.end(1)
                    return None
                if isinstance(step, AnnounceAgain):
                    self._announce(None)
                    continue
                latest = self.core.latest
                self._lease.renew_every(
                    float(latest.wait_renew_period_seconds) if latest is not None else 5.0
                )
                yield 60.0
            self.relay.stop()
            self.endpoints.append(self.offered)
            membership = yield from self._establish(step.membership)
            if membership is not None:
                return membership

    def _establish(self, m: Membership) -> Script:
        self._lease.renew_every(LEADER_RENEW_SECONDS if m.group_rank == 0 else MEMBER_RENEW_SECONDS)
        self.passed = False
        met = yield from self.meeting.meet(m)
        if met is None:
            return None
        m = met
        if m.group_rank == 0:
            if self._ground.behaviour.warm is not None:
                self._lease.voice = self._lease.voice._replace(starts=StartsReport(m.nonce, preparing=True))
                self.spawn(self._prepare(m, self._ground.behaviour.warm))
            self._lease.write(report=RoundReport(m.nonce, established=True))
        self.endpoints = self.endpoints[-1:]
        self.in_round = m
        self._barrier_at, self._failed = self.kernel.now, None
        self._ground.returned(self, m)
        self.heartbeats.begin()
        self.relay.begin(m)
        return m

    def _leave(self) -> None:
        if self.in_round is not None:
            m, self.in_round = self.in_round, None
            self._lease.voice = self._lease.voice._replace(progress=self._progress_in(m))
            self._ground.left(self, m)

    def _train(self, m: Membership) -> Script:
        """Workers of one round. Returns a failure to report, None to rejoin quietly, True at the good end."""
        behaviour, kernel = self._ground.behaviour, self.kernel
        yield kernel.between(0.5, 3.0)
        if behaviour.drains and self.in_round is m:
            self._takes_part = m
            if m.group_rank == 0:
                self._lease.write(drain=DrainReport(m.nonce))
            if self.core.drain_asked():
                self._begin_drain(m)
        while self._failed is None and self.in_round is m:
            if self.core.end_reason():
                yield kernel.between(0.0, POLL_SECONDS)
                break
            if behaviour.fenced:
                self._say_fenced(m)
            if self._ends_first is m or (self._ground.done(self) and not self._has_stopped(m)):
                yield from self._last_steps(m)
                if not self.core.end_reason() and self._failed is None and self.in_round is m:
                    return (yield from self._exit_barrier(m))
                continue
            yield 5.0
        if kernel.rng.random() < behaviour.slow_stop:
            yield kernel.between(1.0, 30.0)
        else:
            yield kernel.between(0.0, 0.3)
        self._leave()
        end = self._failed
        if end is None:
            return None
        milliseconds = round((end.at - self._barrier_at) * 1000)
        text = "exit code unknown" if end.code is None else f"exit code {end.code}"
        return FailureReport(m.number, m.group_rank, text, end.code, 0, milliseconds, end.late)

    def _say_fenced(self, m: Membership) -> None:
        """The local workers have opened their checkpoints: a ``MemberFlag`` of ``watch.heartbeats``."""
        _, keys = self.meeting.keys(m)
        if keys is None or self._lease.voice.fenced == m.nonce:
            return
        keys.fenced.add(m.group_rank)
        self._ground.opened(m)
        if m.group_rank == 0 and len(keys.fenced) == m.size:
            self._lease.write(fenced=m.nonce)

    def _has_stopped(self, m: Membership) -> bool:
        """Whether workers of this round have stopped for a planned change: then no others finish it, but for
        those that have less to train."""
        leader = self._ground.by_address(m.leader_endpoint.partition(":")[0])
        stopped = leader.stores.get(m.prefix, RoundKeys()).stopped if leader is not None else set()
        return m.group_rank in stopped if self._ground.has_less(self) else bool(stopped)

    def _last_steps(self, m: Membership) -> Script:
        until = self.kernel.now + self.kernel.between(0.0, self._ground.behaviour.drift)
        while self.kernel.now < until and not self.core.end_reason() and self._failed is None:
            if self.in_round is not m:
                return
            yield until - self.kernel.now

    def _exit_barrier(self, m: Membership) -> Script:
        """The local workers have ended well: say so and wait for the others. Torch logs what the barrier
        raises and ends well all the same."""
        self._ground.finished(self, m)
        record = None if self.core.end_reason() else self.core.succeeded()
        if record is not None:
            self._lease.write(record=record, finished=m.nonce)
        arrived = False
        while not self.core.job_complete() and not self.core.end_reason():
            what, keys = self.meeting.keys(m)
            if what == "refused":
                break
            if keys is not None:
                keys.finished.add(m.group_rank)
                if not arrived:
                    arrived = True
                    self.meeting.wake_mates()
                if len(keys.finished) == m.size:
                    keys.passed.add(m.group_rank)
                    self.passed = True
                    break
            yield 0.5
        if m.group_rank == 0 and self.passed:
            until = self.kernel.now + LINGER_SECONDS
            while len(self.stores[m.prefix].passed) < m.size and self.kernel.now < until:
                yield 0.2
        yield from self._lease.flush()
        self._leave()
        return True
