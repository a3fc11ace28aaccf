"""One history: a run, some minutes of faults, then peace, in which all that live must train, or the run must
end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from unittest import mock

from elasticjob.contract.fields import MAX_NUMBER
from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.record import Record
from elasticjob.peers.election import MISSED_RENEWALS, MOST_IN_ORDER, ORDER_SECONDS
from elasticjob.peers.kept_out import seconds
from elasticjob.peers.run import Run, round_lease
from elasticjob.peers.seat import LOOK_SECONDS, LOOKERS, MADE_AGAIN_SECONDS, UNSURE_SECONDS
from elasticjob.peers.settled import RUNNING_RENEW, Settled
from elasticjob.peers.silence import CATCH_UP_SECONDS
from tests.peers.api import Api
from tests.peers.faults import Faults
from tests.peers.pods import PODS_SECONDS, Pod
from tests.peers.process import Process
from tests.peers.reading import endpoint_of
from tests.peers.truth import Round, Truth, Violation
from tests.simulation.kernel import Kernel

PEACE_SECONDS, STEADY_SECONDS = 150.0, 25.0
"""How long those that live have to train together again, and how long they must have done so."""
CLOCKS_EVERY = 10
"""One history in so many is played again with clocks that agree."""
END_SECONDS, CLOSED_SECONDS = 60.0, 8.0
ORDERED_SECONDS = MOST_IN_ORDER * ORDER_SECONDS
HEARS_SECONDS = 14.0
"""P5: two times six seconds, and some for the requests."""
ANSWERED_SECONDS = 6.0
"""Until a request of each participant is answered after some have failed: the longest pause of a seat."""
STANDBY_HEARS_SECONDS = (
    MISSED_RENEWALS * RUNNING_RENEW + MADE_AGAIN_SECONDS + UNSURE_SECONDS + ORDERED_SECONDS + 1.0
)
"""P5 beside a running round: the patience, then the time until a Lease whose deletion was not seen is made
again, and some for the requests: 21.3 s."""


class History:
    """Everything follows from the seed. ``skewed``: the clocks of some pods are wrong by hours."""

    def __init__(self, seed: int, skewed: bool = True) -> None:
        self.kernel = Kernel(seed)
        self.skewed = skewed
        rng = self.kernel.rng
        self.lease = round_lease("run")
        self.api = Api(self.kernel)
        self.truth = Truth(self.kernel, self.lease)
        self.api.on_write = self.truth.wrote
        self.api.on_patch = self.truth.patches
        self.truth.knows, self.truth.heard, self.truth.ails = self._knows, self._heard, self.ails
        self.truth.is_lossy = lambda: self.kernel.now - self.lossy_at < CATCH_UP_SECONDS
        self.truth.began = lambda stored: self.faults.began(stored)
        self.limits = Limits(rng.choice([0, 5]), 3, 10, 5, heartbeat_timeout=4)
        self.pods_in_sight = rng.random() < 0.4
        self.deputies = self.pods_in_sight
        self.pods_unseen = False
        """Whether the API server does not list pods now."""
        self.finishing = self.peaceful = False
        self.endpoints: dict[str, Process] = {}
        self.splits: dict[frozenset[str], float] = {}
        self.ids = itertools.count(1)
        self.pods: dict[str, Pod] = {}
        self._made = 0
        self._calm = 0.0
        self.lossy_at = float("-inf")
        """When requests were last lost or late."""
        self._former: dict[str, float] = {}
        count = rng.randint(1, 5)
        minimum = rng.randint(1, count)
        self.run = Run("run", "run-1", minimum, rng.randint(minimum, count))
        for slot in range(count):
            self.start(f"pod-{slot}", slot)
        self._further = random.Random(f"peace {seed}")
        self._addresses = random.Random(f"addresses {seed}")
        self.faults = Faults(self, seed)
        self._check()

    # -- pods ----------------------------------------------------------------------------------------------

    def start(self, name: str, slot: int, uid: str = "", run: Run | None = None) -> Process:
        """A new pod, or a new process in the same one."""
        self._made += 1
        process = Process(self, run or self.run, name, uid or f"uid{self._made}", slot)
        self.pods[name] = Pod(process)
        self.kernel.say(f"start   {name} {process.uid}")
        return process

    def evict(self, name: str, seconds: float) -> None:
        """The pod is deleted, and what is in it traps SIGTERM and ends with 0. After these seconds the pod
        is gone."""
        self.end(name, delete=False)
        pod = self.pods[name]
        pod.code, pod.taken = 0, True
        self.kernel.say(f"evicted {name}")
        self.kernel.after(seconds, self.remove, name)

    def end(self, name: str, delete: bool, in_place: bool = False) -> None:
        """kill -9; the pod stays with its Lease, or goes with it. ``in_place``: a process in the same pod
        follows. Otherwise its address may be gone, too: then no port refuses."""
        pod = self.pods[name]
        pod.process.die()
        pod.process.address_gone = delete or (not in_place and self._addresses.random() < 0.5)
        pod.ended = self.kernel.now
        self.truth.disturb(name)
        self.kernel.say(f"kill    {name}" + ", deleted" * delete)
        if delete:
            self.remove(name)

    def remove(self, name: str) -> None:
        """The pod is deleted: what it owned goes a moment later."""
        pod = self.pods[name]
        pod.deleted = True
        self.kernel.after(self.kernel.between(0.02, 2.0), self.api.collect, pod.process.uid)

    def pod_ended(self, uid: str, now: float) -> bool:
        """Whether it is seen that this pod has ended."""
        return uid in self.ended_pods(now)

    def ended_pods(self, now: float) -> dict[str, str]:
        """The UIDs of pods that are seen to have ended."""
        alive = {pod.process.uid for pod in self.pods.values() if pod.ended is None}
        return {
            uid: "its pod has ended"
            for uid, ended in self._ended.items()
            if ended + PODS_SECONDS < now and uid not in alive
        }

    def bodies(self, now: float) -> list[dict[str, Any]]:
        """The pods as a watch shows them."""
        return [pod.body(now) for pod in self.pods.values() if not pod.deleted]

    def live_pods(self) -> dict[str, str]:
        """The pods that run, also those of another run of this name."""
        return {name: pod.process.uid for name, pod in self.pods.items() if pod.ended is None}

    @property
    def _ended(self) -> dict[str, float]:
        return {**self._former, **{p.process.uid: p.ended for p in self.pods.values() if p.ended is not None}}

    def refuses(self, endpoint: str, asks: str) -> bool:
        """Whether it is seen from the pod ``asks`` that no process listens there."""
        name = endpoint.partition(":")[0]
        if self.apart(name, asks) is not None:
            return False
        pod = self.pods.get(name)
        process = self.endpoints.get(endpoint)
        if process is not None and process.address_gone:
            return False
        return process is None or not process.alive or pod is None or pod.process is not process

    def living(self) -> set[str]:
        """The names of the pods of the newest run that have not ended."""
        return {
            name for name, pod in self.pods.items() if pod.ended is None and pod.process.run.id == self.run.id
        }

    def end_if_lives(self, name: str) -> None:
        """It is deleted, unless it has ended."""
        if self.pods[name].ended is None:
            self.end(name, delete=True)

    def start_again(self, name: str, slot: int, run: Run, uid: str = "") -> None:
        """A pod in place of one that has ended, or with ``uid`` a process in the same pod, unless that was
        deleted. Once there is peace, what makes pods of an earlier run is gone."""
        if self.peaceful and run.id != self.run.id:
            return
        former = self.pods.get(name)
        if former is not None and (former.ended is None or (uid and former.deleted)):
            return
        if former is not None and former.taken and not former.deleted:
            return  # no pod has its name yet
        if former is not None and former.process.uid != uid and former.ended is not None:
            self._former = {**self._former, former.process.uid: former.ended}
        self.start(name, slot, uid, run)

    def split(self, one: str, other: str) -> None:
        """These two cannot reach each other."""
        self.splits.setdefault(frozenset((one, other)), self.kernel.now)
        self._wake()

    def mend(self, one: str, other: str) -> None:
        """They can."""
        self.splits.pop(frozenset((one, other)), None)
        self._wake()

    def apart(self, one: str, other: str) -> float | None:
        """Since when these two cannot reach each other; None: they can."""
        return self.splits.get(frozenset((one, other))) if self.splits else None

    def _wake(self) -> None:
        for one in self.truth.rounds.values():
            one.wake()

    # -- the course ----------------------------------------------------------------------------------------

    def play(self) -> History:
        """Faults, then peace. Raises Violation."""
        kernel, rng = self.kernel, self.kernel.rng
        kernel.run(kernel.between(0.0, 30.0))
        for _ in range(rng.randint(0, 8)):
            self.faults.strike()
            kernel.run(kernel.between(0.0, 5.0) if rng.random() < 0.4 else kernel.between(5.0, 40.0))
        self._make_peace()
        self._rest(PEACE_SECONDS + self._kept_out_for(), STEADY_SECONDS, self._not_training)
        if self._not_training():
            self._rest(self._kept_out_for(), STEADY_SECONDS, self._not_training)
        if wrong := self._not_training():
            raise Violation("I6", wrong)
        if rng.random() < 0.5:
            self.finishing = True
            self._wake()
            self._rest(END_SECONDS, CLOSED_SECONDS, self._not_over)
            if wrong := self._not_over():
                raise Violation("end", wrong)
        return self

    def _kept_out_for(self) -> float:
        """How much longer those that live may take to train together while one is kept out of rounds."""
        newest = self.newest()
        kept = [seconds(one) for one in newest.kept_out] if newest is not None else []
        return 2 * max(kept, default=0.0)

    def _rest(self, longest: float, steady: float, wrong: Callable[[], str]) -> None:
        """Let time pass until nothing has been wrong for ``steady`` seconds, or for ``longest``."""
        kernel = self.kernel
        until, since = kernel.now + longest, kernel.now
        while kernel.now < min(until, since + steady):
            kernel.run(1.0)
            since = kernel.now if wrong() else since

    def _make_peace(self) -> None:
        """No more faults. Pods of an earlier run are deleted. So is what stays of ended pods in half of the
        histories, as an admin would."""
        self.kernel.say("peace")
        self.peaceful = True
        self.faults.make_peace()
        self.splits.clear()
        self._wake()
        tidy = self._further.random() < 0.5
        for name in [name for name in self.api.leases if name.startswith("copy-")]:
            self.api.delete(name)
        for name, pod in list(self.pods.items()):
            pod.process.thaw()
            if pod.process.run.id != self.run.id:
                self.end_if_lives(name)
            stays = not tidy and (self._has_a_port(name) or self._says_that_it_ends(name))
            if pod.ended is not None and not pod.deleted and not stays:
                self.remove(name)

    def _has_a_port(self, name: str) -> bool:
        """Whether its Lease is of this run and says where its agent listened, and this port refuses. A user
        may have written over it, or its last process could not write: then only its deletion is proof."""
        stored = self.api.leases.get(name)
        if stored is None or stored.annotations.get("run") != self.run.id:
            return False
        if self.pods[name].process.address_gone or str(MAX_NUMBER) in stored.annotations.get(
            "participant", ""
        ):
            return False
        return bool(endpoint_of(stored.annotations))

    def _says_that_it_ends(self, name: str) -> bool:
        """Whether the Lease of this pod says so: then no other run waits for it."""
        stored = self.api.leases.get(name)
        return stored is not None and '"state":"Leaving"' in stored.annotations.get("participant", "")

    def _waits_in_another_run(self, name: str, pod: Pod) -> bool:
        """Whether this pod was in another run, and seems to wait there by its Lease, which stays with it when
        it has ended and nothing says so."""
        stored = self.api.leases.get(name)
        known = self.pods_in_sight and pod.process.uid in self.ended_pods(self.kernel.now)
        if (
            stored is None
            or pod.deleted
            or known
            or (pod.ended is not None and self._says_that_it_ends(name))
        ):
            return False
        return stored.annotations.get("run") != self.run.id

    def _knows(self, settled: Settled) -> bool:
        """Whether a process that lives has seen this record, or a later one of its run. One whose Lease was
        deleted is as good as gone until it has made it again: nothing shows that it is there."""
        alive = (pod.process for name, pod in self.pods.items() if name in self.api.leases)
        seen = [p.seat.newest for p in alive if p.alive and p.run.id == settled.run]
        return any(one is not None and one.order >= settled.order for one in seen)

    def ails(self, name: str) -> bool:
        """Whether it is frozen, cut off from the API server or from another pod, or hears nothing of it."""
        if name not in self.pods:
            return True  # a copied Lease: nobody will come
        process = self.pods[name].process
        deaf = any(watch.stuck and watch.host is process for watch in self.api.watches)
        return (
            process.frozen or deaf or process in self.api.cut_off or any(name in pair for pair in self.splits)
        )

    def _heard(self, one: Round) -> bool:
        stored = self.api.leases.get(one.settled.state.members[0].name)
        report = stored.annotations.get("report", "") if stored is not None else ""
        return one.settled.state.nonce in report and '"established":true' in report

    def newest(self) -> Settled | None:
        """The newest record of the newest run."""
        return self.truth.newest.get(self.run.id)

    def _alive(self) -> list[Process]:
        """The processes of the newest run that live."""
        return [self.pods[name].process for name in sorted(self.living()) if self.pods[name].process.alive]

    def _not_training(self) -> str:
        """Why those that live do not train as they should; "" if they do."""
        alive, newest = self._alive(), self.newest()
        if newest is None or newest.closed or len(alive) < newest.minimum:
            return ""
        training = [one for one in self.truth.rounds.values() if one.whole]
        size = min(len(alive), newest.maximum)
        if len(training) != 1 or training[0].size != size:
            sizes = [(one.settled.state.number, one.size) for one in training]
            return f"{len(alive)} live, {size} should train: {sizes}, {newest.message}"
        return ""

    def _not_over(self) -> str:
        """Why the run is not closed although all have succeeded; "" if it is."""
        newest = self.newest()
        if newest is None or len(self._alive()) < newest.minimum:
            return ""
        whole = any(one.whole for one in self.truth.rounds.values())
        return f"all have succeeded, and the run is {newest.state.phase}" * (not newest.closed and whole)

    def _check(self) -> None:
        """Once a second: P5, and processes that have ended by themselves."""
        self.kernel.after(1.0, self._check)
        now = self.kernel.now
        self.lossy_at = now if self.api.lossy or self.api.lag > 1 else self.lossy_at
        for name, pod in list(self.pods.items()):
            process = pod.process
            if pod.ended is None and process.exit and process._peers.done:
                pod.ended, pod.code = now, int(process.exit not in ("succeeded", "complete"))
                process.die()
                self.kernel.say(f"exit    {name}: {process.exit}")
        self._judge_waiting()

    def _judge_waiting(self) -> None:
        """P5, while the API server answers."""
        now = self.kernel.now
        api = self.api
        if api.away or api.forbids or api.lossy or api.lag > 1:
            self._calm = now
        if any(pod.process.run.id != self.run.id for pod in self.pods.values() if not pod.deleted):
            self._calm = now
        if any(self._waits_in_another_run(name, pod) for name, pod in self.pods.items()):
            self._calm = now
        newest = self.newest()
        deaf = {w.host for w in api.watches if w.deaf}
        for process in self._alive():
            if process.frozen or process in api.cut_off or process in deaf:
                process.hampered_at = now
        if newest is not None and newest.closed:
            return
        stored = api.leases.get(self.lease)
        shown = self.truth.read(stored) if stored is not None else None
        runs = any(one is not None and one.state.active for one in (newest, shown))
        for process in self._alive():
            answered = max(self._calm, process.hampered_at) + ANSWERED_SECONDS
            since = max(process.waits_since or now, self.truth.lease_changed, answered)
            announced = process.core.announced
            waits = (
                announced is not None and announced.state == AnnouncedState.JOINING and process.waits_since
            )
            seen = process.seat.newest
            stands_by = runs or (seen is not None and seen.state.active)
            limit = STANDBY_HEARS_SECONDS if stands_by else HEARS_SECONDS
            if waits and now - since > limit + process.turn // LOOKERS * LOOK_SECONDS:
                raise Violation("P5", f"{process.name} has heard of no coordinator for {now - since:.1f} s")


def play(seed: int) -> History:
    """A history. Raises Violation."""
    with mock.patch.object(Record, "parse", classmethod(_remembered)):
        history = History(seed).play()
        if seed % CLOCKS_EVERY == 0:
            agreed = History(seed, skewed=False)
            agreed.play()
            _compare(history, agreed)
        return history


def _compare(history: History, agreed: History) -> None:
    """P6: with clocks that agree, all is the same."""
    for (at, text), (_, other) in zip(history.kernel.trace, agreed.kernel.trace, strict=False):
        if text != other:
            raise Violation("P6", f"at {at:.3f} s with wrong clocks: {text}; with clocks that agree: {other}")


_PARSE: Callable[[type[Record], str], Record] = vars(Record)["parse"].__func__


def _remembered(kind: Any, text: str) -> Record:
    return _parse(kind, text)


@lru_cache(maxsize=2000)
def _parse(kind: Any, text: str) -> Record:
    """As ``Record.parse``, which is pure, and its records frozen: all participants read the same texts."""
    return _PARSE(kind, text)
