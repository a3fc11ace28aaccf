"""The whole simulated world, what can be done to it, and what must be true when it has come to rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.contract.round_record import INLINE_MEMBERS
from elasticjob_operator.plan.state.evidence import (
    APPLICATION,
    INFRASTRUCTURE,
    PREEMPTION,
    SCALING,
)
from elasticjob_operator.plan.state.grant import QueueRequest
from elasticjob_operator.plan.state.model import (
    CreatePod,
    DeletePod,
    GangScheduling,
    Job,
    JobSpec,
    Limit,
    MemoryCheckpoints,
    Pod,
)
from elasticjob_operator.plan.state.sized import sized
from elasticjob_operator.plan.state.status import JobStatus
from tests.asked import asked
from tests.simulation.agent import Agent
from tests.simulation.api import JOB_KEY, LIST_KEY, ROUND_KEY, Api, Item, Key, Watch
from tests.simulation.cluster import Cluster
from tests.simulation.gang import GROUP_KEY, Gang
from tests.simulation.ground import Behaviour
from tests.simulation.informers import JobValue
from tests.simulation.kernel import Kernel
from tests.simulation.operator import Operator
from tests.simulation.oracle import Oracle
from tests.simulation.owned import Owned
from tests.simulation.queue import KIND, Kueue, Queued
from tests.simulation.training import Training
from tests.simulation.traits import OWNED, Traits, draw
from tests.simulation.workload import Workload

HANGING: dict[str, tuple[type, ...]] = {"make": (CreatePod,), "delete": (DeletePod,)}
"""What a pass begins and does not wait for, where the API server answers after the time limit."""

HEARD_AGAIN_SECONDS = 2.0
"""How long after a light disturbance heartbeats are heard again."""


class World(Training):
    """One job on some nodes, with one operator. Everything is drawn from the seed, unless ``spec`` and
    ``behaviour`` say what the job is; its pods are its own then. ``clocks`` and ``wall``: by how many seconds
    the operators' monotonic clocks and their wall clocks may differ."""

    def __init__(
        self,
        seed: int,
        clocks: float = 3600.0,
        spec: JobSpec | None = None,
        behaviour: Behaviour | None = None,
        wall: float = 3.0,
    ) -> None:
        self.kernel = kernel = Kernel(seed)
        rng = kernel.rng
        self.seed = seed
        self.traits = draw(seed) if spec is None else Traits()
        self.clocks, self.wall = clocks, wall
        self.api = Api(kernel)
        self.oracle = Oracle(lambda: kernel.now)
        self.oracle.pod_uids = self._live_pod_uids  # type: ignore[method-assign]
        self.oracle.runs = self._runs  # type: ignore[method-assign]
        self.oracle.hangs = lambda uid: uid in self.cluster.agents and self.cluster.agents[uid].hangs  # type: ignore[method-assign]
        self.oracle.dead = lambda uid: uid in self.cluster.agents and not self.cluster.agents[uid].alive  # type: ignore[method-assign]
        self.api.committed.append(self.oracle.committed)
        self.api.committed.append(self._tell)
        needed = kernel.between(10.0, 200.0) if rng.random() < 0.6 else None
        if self.traits.commands is not None and needed is None:
            needed = 60.0  # what follows a torchrun that never ends is never seen
        self.behaviour = behaviour or Behaviour(
            needed, rng.random() < 0.5, drift=rng.choice((0.0, 2.0, 20.0))
        )
        self.behaviour.fenced = self.traits.fenced
        self.behaviour.drains |= self.traits.drains or self.traits.memory or bool(self.traits.uneven)
        self.behaviour.uneven = self.traits.uneven
        if self.traits.uneven and self.behaviour.needed is None:
            self.behaviour.needed = 90.0
        self.behaviour.warm = self.traits.warm
        self.behaviour.relays = self.traits.mute is not None
        self.progress = 0.0
        self.oracle.pace.come = lambda: self.progress if self.behaviour.steps else 0.0
        self.stage = 1
        self._failures = 0
        self._whole_since = self._stopped = self.stands = None
        self.cluster = Cluster(self.api, kernel, rng.choice((2, 3)), self._start_agent)
        self.cluster.owner_is_there = lambda pod: pod.uid.partition("-")[0] in (self.job_uid, "other")
        self._by_address = {}
        self._shaken: set[str] = set()
        self._shaken_until = 0.0
        """When the last of the light disturbances is over: at both ends of a path one may follow another."""
        self._gone = {}
        self.mended = False
        self._jobs = 0
        self._spec = spec
        self.room: int | None = None
        """For how many pods the cluster has room, None: for all."""
        self.others = rng.random() < 0.2 and spec is None
        self.cluster.sidecars = self.traits.sidecars and not self.others
        self.cluster.places = self._places
        self.cluster.over = lambda: self.status.finished
        self.cluster.restarts_in_place = self.others and rng.random() < 0.5
        self.oracle.past.restarts_in_place = self.cluster.restarts_in_place
        self.queued = self.traits.queue and not self.others
        self.gang = None if self.others else self.traits.gang
        self.make_job()
        self.kueue = Kueue(self) if self.queued else None
        self.cluster.gang = Gang(self) if self.gang is not None else None
        if self.others:
            self.workload = Workload(kernel, self.api, self._wanted)
        self.operators: list[Operator] = []
        self.oracle.past.deafness = lambda: (
            (name, *times) for name, watch in self._watches() for times in watch.dead_times
        )
        self.oracle.past.silence = lambda: (
            times for _, watch in self._watches() for times in (*watch.dead_times, *watch.broken_times)
        )
        self.start_operator()

    # -- what can be done to it ----------------------------------------------------------------------------

    def make_job(self) -> None:
        """Somebody creates the ElasticJob."""
        self._jobs += 1
        spec = self._spec or self._draw_spec()
        queue = QueueRequest("a") if self.queued else None
        job = Job("default", "mnist", f"job{self._jobs}", 1, spec, queue=queue)
        self.job_uid = job.uid
        self.api.create(JOB_KEY, JobValue(job, JobStatus()), job.uid)

    def _draw_spec(self) -> JobSpec:
        rng = self.kernel.rng
        replicas = rng.choice((1, 2, 2, 3, 3, 4))
        if self.queued:
            replicas = 2 * replicas  # for extras of several pods
        budget = rng.choice((None, None, None, 1, 3))
        spec = JobSpec(
            replicas=replicas,
            sizes=self.traits.sizes,
            min_replicas=rng.choice((None, 1, max(1, replicas - 1))),
            template=None if self.others else {},
            application=Limit(budget, None if budget is None else 10_000),
            infrastructure=Limit(),
            fencing_after=self.traits.fencing,
            gang_scheduling=GangScheduling.NONE if self.gang is None else GangScheduling.KUBERNETES,
            payback=self.traits.payback,
            spares=rng.choice((0, 0, 0, 1, 2)),
            limits=Limits(hang_timeout=rng.choice((0, 30, 90)) if self.behaviour.steps else 0),
            memory_checkpoints=MemoryCheckpoints(1) if self.traits.memory else None,
        )
        return sized(spec)

    def hang_workers(self) -> None:
        """The training loop of the present round stands still from now on; the leader is the one to tell."""
        limit = self.job.job.spec.limits.hang_timeout if self.job is not None else 0
        leader = next(
            (a for a in self.running() if a.in_round is not None and a.in_round.group_rank == 0), None
        )
        if not limit or leader is None or leader.in_round is None or self._whole_since is None:
            return
        membership, key = leader.in_round, self._whole_since[0]
        steps = self.steps(membership)
        if steps is None or key != (membership.job_uid, membership.number):
            return
        self.disturb(f"the training loop of round {membership.number} hangs")
        self.oracle.happens("*", APPLICATION, key=key)
        self._break_whole(key)
        self.stands = (key, steps)
        self.kernel.after(limit, leader.find_hung, membership, float(limit))

    def delete_job(self, uid: str) -> None:
        """The ElasticJob is deleted; the garbage collector follows."""
        self.api.remove(JOB_KEY, uid)
        for key, item in list(self.api.items.items()):
            if key[0] == "pod":
                self.kernel.after(self.kernel.between(0.1, 3.0), self.cluster.collect, key[1], item.uid)
            elif key[0] == KIND:
                self.kernel.after(self.kernel.between(0.1, 3.0), self._collect_workload, key, item.uid)
            elif key in (ROUND_KEY, LIST_KEY, GROUP_KEY):
                self.kernel.after(self.kernel.between(0.1, 3.0), self._collect_record, key, item.uid)

    def _collect_record(self, key: Key, uid: str) -> None:
        item = self.api.items.get(key)
        if item is not None and item.uid == uid:
            self.api.remove(key, uid)

    def _collect_workload(self, key: Key, uid: str) -> None:
        """It has a finalizer: it is being deleted, and the operator lets it go."""
        item = self.api.items.get(key)
        if item is not None and item.uid == uid and item.value.workload.kept:
            deleted = replace(item.value.workload, deleting=True)
            self.api.put(key, Queued(item.value.job_uid, deleted), uid)
        elif item is not None and item.uid == uid:
            self.api.remove(key, uid)

    def start_operator(self) -> Operator:
        """Another operator process, with clocks of its own."""
        rng = self.kernel.rng
        operator = Operator(
            self.kernel,
            self.api,
            f"operator-{len(self.operators)}",
            float(int(rng.uniform(-self.wall, self.wall))),
            float(int(rng.uniform(0.0, 2 * self.clocks))),
            self.kernel.say,
            self.queued,
            self.gang,
        )
        if self.traits.racks:
            operator.domains = {name: (f"rack={name[-1] in '02'}", name) for name in self.cluster.nodes}
        operator.inline_members = 1 if self.seed % 3 == 1 else INLINE_MEMBERS
        if self.traits.failing is not None and self.traits.failing.what in OWNED:
            operator.owned = Owned(operator)
        if self.traits.failing is not None and self.traits.failing.how == "time limit":
            operator.hanging = HANGING.get(self.traits.failing.what, ())
        operator.delete_pod = lambda name, uid: self._delete_pod(operator, name, uid)
        operator.delete_job = self.delete_job
        self.operators.append(operator)
        return operator

    def _delete_pod(self, operator: Operator, name: str, uid: str) -> Item | None:
        """Of one that leads no more, the next one sees that a pod is being deleted, and not why."""
        if operator is not self.operators[-1]:
            self.oracle.happens(uid, PREEMPTION)
        return self.cluster.delete_pod(name, uid)

    @property
    def job(self) -> JobValue | None:
        """The ElasticJob as it stands, or None."""
        item = self.api.items.get(JOB_KEY)
        return None if item is None else item.value

    @property
    def status(self) -> JobStatus:
        """Its status."""
        return self.job.status if self.job is not None else JobStatus()

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """A fault goes on or ends; not after everything was mended."""

        def unless_mended() -> None:
            if not self.mended:
                action(*args)

        self.kernel.after(seconds, unless_mended)

    def disturb(
        self, what: str, *uids: str, lightly: float = 0.0, accounts: tuple[str, ...] = (INFRASTRUCTURE,)
    ) -> None:
        """Say what is done, and to what; agents that send heartbeats look up. ``lightly``: for so many
        seconds, which by themselves are not enough to break a round that is established; 0 if they may be.
        ``accounts``: those that may bear it."""
        self.kernel.say(f"** {what}")
        self.oracle.pace.fault()
        goes_on = self.kernel.now < self._shaken_until + HEARD_AGAIN_SECONDS
        for uid in uids:
            self.oracle.happens(
                uid, *accounts, lightly=lightly > 0 and not goes_on and uid not in self._shaken
            )
            if lightly:
                self._shaken.add(uid)  # the next one may be too much
        self._shaken_until = max(self._shaken_until, self.kernel.now + lightly if lightly else 0.0)
        self.look()

    def plan(self, what: str, minimum_raised: bool = False) -> None:
        """Announce a change of the size."""
        self.kernel.say(f"** {what}")
        self.oracle.pace.changed(minimum_raised)
        self.look()

    def change_spec(self, change: Callable[[JobSpec], JobSpec]) -> None:
        """A user edits the job."""
        item = self.api.items.get(JOB_KEY)
        if item is None:
            return
        value: JobValue = item.value
        spec = sized(change(asked(value.job.spec)))
        job = replace(value.job, generation=value.job.generation + 1, spec=spec)
        self.oracle.happens("*", SCALING)
        self.api.put(JOB_KEY, JobValue(job, value.status))

    # -- inside --------------------------------------------------------------------------------------------

    def _start_agent(self, pod: Pod) -> Agent:
        pinned = "" if self.others else pod.uid.partition("-")[0]
        agent = Agent(self.kernel, self.api, self.cluster, self, pod, pinned)
        self._by_address[pod.ip] = agent
        node = self.cluster.nodes[pod.node]
        if not node.healthy or not node.peers or self.kernel.now < node.back_at + 60.0:
            self.oracle.happens(
                agent.uid, INFRASTRUCTURE
            )  # a watch of nodes that lags may still take it for gone
        return agent

    def _watches(self) -> Iterator[tuple[str, Watch]]:
        """Those of all operators that there were, by name."""
        for operator in self.operators:
            yield from operator.watches.items()

    def _places(self) -> float:
        slack = self.traits.places
        places = float("inf") if slack is None else self._wanted() + slack
        return places if self.room is None else min(places, self.room)

    def _wanted(self) -> int:
        return 0 if self.job is None or self.status.finished else self.job.job.spec.pods

    def _live_pod_uids(self) -> set[str]:
        """Pods that have not ended, and whose node was not given up."""
        return {
            i.uid
            for k, i in self.api.items.items()
            if k[0] == "pod" and not i.value.ended and self.cluster.is_there(i.value)
        }

    def _runs(self, uid: str) -> bool:
        """Whether this training container has not ended with 0, and its pod was not given up."""
        agent = self.cluster.agents.get(uid)
        item = self.api.items.get(("pod", agent.pod.name)) if agent is not None else None
        if agent is None or item is None or item.uid != uid or item.value.deleting:
            return False
        node = self.cluster.node_of(agent)
        return (agent.alive or agent.exit_code != 0) and node.healthy and self.cluster.is_there(item.value)

    def watched(self) -> bool:
        """Whether an operator sees what happens now."""
        operator, weather = self.operators[-1], self.api.weather
        up = operator.alive and not operator.frozen and operator.api_path
        return up and not (weather.down or weather.slow or operator.watches["pods"].lags)

    def _tell(self, key: Key, old: Item | None, item: Item | None) -> None:
        """What people would want to read in a trace."""
        if key == JOB_KEY and item is not None:
            a = old.value.status if old is not None else JobStatus()
            b: JobStatus = item.value.status
            why = b.current_round if b.current_round.phase == "Active" else b.current_round.next_cause
            if (a.current_round.number, a.current_round.phase) != (
                b.current_round.number,
                b.current_round.phase,
            ):
                members = (
                    " ".join(m.pod_name for m in b.members()) if b.current_round.phase == "Active" else ""
                )
                self.kernel.say(
                    f"status: round {b.current_round.number} {b.current_round.phase} [{members}] "
                    f"{why.cause or b.current_round.cause}: {why.message}"
                )
            elif a.current_round.established_time is None and b.current_round.established_time is not None:
                self.kernel.say(f"status: round {b.current_round.number} is established")
        elif key == ROUND_KEY:
            self.kernel.say(
                "record: deleted" if item is None else f"record: {item.value.number} {item.value.phase}"
            )
        elif key[0] == "lease" and item is not None and old is None:
            broken, agent = self.traits.broken, self.cluster.agents.get(item.value.holder)
            if (
                broken is not None
                and not broken.trains
                and agent is not None
                and agent.pod.slot == broken.slot
            ):
                self.kernel.after(broken.seconds, self._break_down, agent, None)
        elif key[0] == "pod":
            if item is None:
                assert old is not None
                self.kernel.say(f"pod {key[1]} is gone")
                self._gone[old.uid] = self.kernel.now
                if not self.watched():
                    self.oracle.happens(old.uid, INFRASTRUCTURE, harmless=True)  # the cause cannot be known
            elif old is None:
                self.kernel.say(f"pod {key[1]} is made")
            elif item.value.deleting and not old.value.deleting:
                self.kernel.say(f"pod {key[1]} is being deleted")
