"""The whole simulated world, what can be done to it, and what must be true when it has come to rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.round_record import INLINE_MEMBERS
from elasticjob.core.participant import Membership
from elasticjob_operator.plan.state.evidence import (
    APPLICATION,
    INFRASTRUCTURE,
    PREEMPTION,
    SCALING,
)
from elasticjob_operator.plan.state.model import Job, JobSpec, Limit, Pod
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.agent import Agent
from tests.simulation.api import JOB_KEY, LIST_KEY, ROUND_KEY, Api, Item, Key
from tests.simulation.cluster import Cluster
from tests.simulation.ground import After, Behaviour, Steps, WorkerEnd
from tests.simulation.informers import JobValue
from tests.simulation.kernel import Kernel
from tests.simulation.operator import Operator
from tests.simulation.oracle import Oracle
from tests.simulation.owned import Owned
from tests.simulation.traits import OWNED, Traits, draw
from tests.simulation.truth import RoundKey
from tests.simulation.workload import Workload

TOKEN_SECONDS = 2.0
"""For so long the token of a pod that is gone is accepted."""


class World:
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
        self.behaviour.drains |= self.traits.drains or bool(self.traits.uneven)
        self.behaviour.uneven = self.traits.uneven
        if self.traits.uneven and self.behaviour.needed is None:
            self.behaviour.needed = 90.0
        self.behaviour.warm = self.traits.warm
        self.behaviour.relays = self.traits.mute is not None
        self.progress = 0.0
        self.oracle.pace.come = lambda: self.progress if self.behaviour.steps else 0.0
        self.stage = 1
        self._failures = 0
        """How many commands have failed after their torchrun."""
        self._whole_since: tuple[RoundKey, float] | None = None
        self._stopped: tuple[RoundKey, float] | None = None
        """The last round of which a worker failed, and when it did first."""
        self.stands: tuple[RoundKey, Steps] | None = None
        """The round whose training loop hangs, and how far it had come."""
        self.cluster = Cluster(self.api, kernel, rng.choice((2, 3)), self._start_agent)
        self.cluster.owner_is_there = lambda pod: pod.uid.partition("-")[0] in (self.job_uid, "other")
        self._by_address: dict[str, Agent] = {}
        self._shaken: set[str] = set()
        self._gone: dict[str, float] = {}
        """Since when the object of a pod is gone, by its UID."""
        self.mended = False
        self._jobs = 0
        self._spec = spec
        self.room: int | None = None
        """For how many pods the cluster has room, None: for all."""
        self.others = rng.random() < 0.2 and spec is None
        """Whether others create the pods."""
        self.cluster.sidecars = self.traits.sidecars and not self.others
        self.cluster.places = self._places
        self.cluster.over = lambda: self.status.finished
        self.cluster.restarts_in_place = self.others and rng.random() < 0.5
        self.oracle.past.restarts_in_place = self.cluster.restarts_in_place
        self.make_job()
        if self.others:
            self.workload = Workload(kernel, self.api, self._wanted)
        self.operators: list[Operator] = []
        self.oracle.past.deafness = lambda: (
            (name, *times)
            for operator in self.operators
            for name, watch in operator.watches.items()
            for times in watch.dead_times
        )
        self.start_operator()

    # -- the world as agents see it (``Ground``) -----------------------------------------------------------

    def agents(self) -> list[Agent]:
        """All agents that ever ran."""
        return list(self.cluster.agents.values())

    def by_address(self, address: str) -> Agent | None:
        """The agent whose pod had this IP."""
        return self._by_address.get(address)

    def returned(self, agent: Agent, membership: Membership) -> None:
        """``next_rendezvous`` has returned."""
        self.kernel.say(
            f"{agent.name} is rank {membership.group_rank} of {membership.size} in {membership.number}"
        )
        self.oracle.agent_returned(agent, membership)
        key = (membership.job_uid, membership.number)
        if len(self.oracle.training.get(key, ())) == membership.size and self._all_live(membership):
            self._whole_since = (key, self.kernel.now + 3.0)
            if self.behaviour.needed is not None:
                left = max(0.0, self.behaviour.needed - self.progress) + 3.0
                self.kernel.after(left, self._trained, key)
        broken = self.traits.broken
        if broken is not None and broken.trains and broken.slot in (None, agent.pod.slot):
            self.kernel.after(broken.seconds, self._break_down, agent, membership)

    def _break_down(self, agent: Agent, m: Membership | None) -> None:
        """What is broken fails again: the script in all workers, or the pod of one slot."""
        broken = self.traits.broken
        if broken is None or (broken.mended and self.mended) or not agent.alive or agent.frozen:
            return
        if broken.slot is None and m is not None:
            agent.fail_worker(m)
        elif broken.slot is not None and (m is None or agent.in_round is m):
            unknown = self.others or not self.cluster.node_of(agent).healthy
            self.oracle.happens(agent.uid, APPLICATION, *([INFRASTRUCTURE] if unknown else []))
            agent.end(1)

    def left(self, agent: Agent, membership: Membership) -> None:
        """The agent's workers of this round have ended."""
        self._break_whole((membership.job_uid, membership.number))
        self.oracle.agent_left(agent, membership)
        self._echo(membership)
        self.look()

    def worker_failed(self, agent: Agent, membership: Membership, failure: WorkerEnd) -> None:
        """A worker has failed."""
        how = "late" * failure.late or "from its peer's loss" * failure.echo or f"with {failure.code}"
        self.kernel.say(f"a worker of {agent.name} fails in round {membership.number} {how}")
        key = (membership.job_uid, membership.number)
        if self._stopped is None or self._stopped[0] != key:
            self._stopped = key, self.kernel.now
        self.oracle.agent_failed(agent, membership, failure.echo or failure.late)

    def unheard(self, agent: Agent) -> None:
        """See ``Ground``."""
        record = agent.core.announced
        if record is not None and (
            agent.core.membership is None or record.state == AnnouncedState.SUCCEEDED.value
        ):
            self.oracle.past.unheard.add((agent.uid, (record.from_job_uid, record.from_round)))

    def missed(self, membership: Membership) -> None:
        """See ``Ground``."""
        key = (membership.job_uid, membership.number)
        said = [(a.uid, a.core.announced) for a in self.agents() if a.in_round is None]
        left = {(uid, (r.from_job_uid, r.from_round)) for uid, r in said if r is not None}
        if any(one[1] == key for one in left - self.oracle.past.heard):
            self.oracle.past.missed.add(key)

    def knows(self, agent: Agent) -> bool:
        """Whether the API server accepts its token."""
        return self.kernel.now - self._gone.get(agent.uid, self.kernel.now) < TOKEN_SECONDS

    def finished(self, agent: Agent, membership: Membership) -> None:
        """The workers have ended well."""
        self.kernel.say(f"{agent.name} has finished round {membership.number}")
        self.oracle.agent_finished(agent, membership)

    def opened(self, membership: Membership) -> None:
        """The workers of this member have opened checkpoints that are fenced."""
        self.oracle.opened.setdefault(membership.nonce, set()).add(membership.group_rank)

    def done(self, agent: Agent) -> bool:
        """Whether the training of the torchrun that this agent runs is done."""
        needed = self.behaviour.needed
        if needed is None or agent.stage < self.stage or self.progress >= needed:
            return needed is not None
        return self.has_less(agent) and self._now_at() >= needed - self.behaviour.uneven

    def has_less(self, agent: Agent) -> bool:
        """Whether its workers have less to train than others."""
        return bool(self.behaviour.uneven and (agent.pod.slot or 0) % 2)

    def _now_at(self) -> float:
        """How far training is at this moment."""
        since = self.kernel.now if self._whole_since is None else self._whole_since[1]
        return self.progress + max(0.0, self.kernel.now - since)

    def before_torchrun(self) -> float:
        """How long its container does something else first."""
        commands = self.traits.commands
        if commands is None or self.others or not commands.before:
            return 0.0
        return commands.before * self.kernel.between(0.5, 1.0)

    def after_torchrun(self, agent: Agent) -> After:
        """What follows in its container."""
        commands = self.traits.commands
        if commands is None or self.others:
            return After()
        seconds = commands.seconds * self.kernel.between(0.2, 1.0)
        if agent.stage < commands.torchruns:
            if agent.stage == self.stage:
                self.stage, self.progress, self._whole_since = self.stage + 1, 0.0, None
            self.kernel.say(f"{agent.name} runs torchrun again in {seconds:.0f} s")
            return After(seconds, again=True)
        fails = self._failures < commands.failures and not self.mended
        self._failures += fails
        return After(seconds, int(fails))

    def command_failed(self, agent: Agent) -> None:
        """What followed has failed."""
        self.oracle.pace.fault()
        unknown = not self.cluster.node_of(agent).healthy
        self.oracle.happens(agent.uid, APPLICATION, *([INFRASTRUCTURE] if unknown else []))

    def steps(self, membership: Membership) -> Steps | None:
        """How far the training of this round has come."""
        key = (membership.job_uid, membership.number)
        if self.stands is not None and self.stands[0] == key:
            return self.stands[1]
        if self._whole_since is None or self._whole_since[0] != key:
            return None
        began, now = self._whole_since[1], self.kernel.now
        if self._stopped is not None and self._stopped[0] == key:
            now = self._stopped[1]  # without one of its workers none trains on
        if now < began:
            return None
        trained = now - began
        if self.behaviour.needed is not None:
            trained = min(trained, max(0.0, self.behaviour.needed - self.progress))
        grew = began + int(trained)
        return Steps(int(self.progress), int(self.progress) + int(trained), began, grew)

    def stands_still(self, membership: Membership) -> bool:
        """Whether the training loop of this round hangs."""
        return self.stands is not None and self.stands[0] == (membership.job_uid, membership.number)

    # -- what can be done to it ----------------------------------------------------------------------------

    def make_job(self) -> None:
        """Somebody creates the ElasticJob."""
        self._jobs += 1
        spec = self._spec or self._draw_spec()
        job = Job("default", "mnist", f"job{self._jobs}", 1, spec)
        self.job_uid = job.uid
        self.api.create(JOB_KEY, JobValue(job, JobStatus()), job.uid)

    def _draw_spec(self) -> JobSpec:
        rng = self.kernel.rng
        replicas = rng.choice((1, 2, 2, 3, 3, 4))
        budget = rng.choice((None, None, None, 1, 3))
        return JobSpec(
            replicas=replicas,
            min_replicas=rng.choice((None, 1, max(1, replicas - 1))),
            template=None if self.others else {},
            application=Limit(budget, None if budget is None else 10_000),
            infrastructure=Limit(),
            fencing_after=self.traits.fencing,
            payback=self.traits.payback,
            spares=rng.choice((0, 0, 0, 1, 2)),
            limits=Limits(hang_timeout=rng.choice((0, 30, 90)) if self.behaviour.steps else 0),
        )

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
            elif key in (ROUND_KEY, LIST_KEY):
                self.kernel.after(self.kernel.between(0.1, 3.0), self._collect_record, key, item.uid)

    def _collect_record(self, key: Key, uid: str) -> None:
        item = self.api.items.get(key)
        if item is not None and item.uid == uid:
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
        )
        operator.inline_members = 1 if self.seed % 3 == 1 else INLINE_MEMBERS
        if self.traits.failing is not None and self.traits.failing.what in OWNED:
            operator.owned = Owned(operator)
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

    def running(self) -> list[Agent]:
        """Agents that live."""
        return [a for a in self.cluster.agents.values() if a.alive]

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """A fault goes on or ends; not after everything was mended."""

        def unless_mended() -> None:
            if not self.mended:
                action(*args)

        self.kernel.after(seconds, unless_mended)

    def disturb(
        self, what: str, *uids: str, lightly: bool = False, accounts: tuple[str, ...] = (INFRASTRUCTURE,)
    ) -> None:
        """Say what is done, and to what; agents that send heartbeats look up. ``lightly``: not for long
        enough to break a round that is established. ``accounts``: those that may bear it."""
        self.kernel.say(f"** {what}")
        self.oracle.pace.fault()
        for uid in uids:
            self.oracle.happens(uid, *accounts, lightly=lightly and uid not in self._shaken)
            if lightly:
                self._shaken.add(uid)  # the next one may be too much
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
        job = replace(value.job, generation=value.job.generation + 1, spec=change(value.job.spec))
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

    def _places(self) -> float:
        slack = self.traits.places
        places = float("inf") if slack is None else self._wanted() + slack
        return places if self.room is None else min(places, self.room)

    def _wanted(self) -> int:
        return 0 if self.job is None or self.status.finished else self.job.job.spec.pods

    def _all_live(self, m: Membership) -> bool:
        uids = self.oracle.training[(m.job_uid, m.number)].values()
        return all(self.cluster.agents[uid].alive and not self.cluster.agents[uid].frozen for uid in uids)

    def _trained(self, key: tuple[str, int]) -> None:
        if self._whole_since is not None and self._whole_since[0] == key:
            assert self.behaviour.needed is not None
            since = self._whole_since[1]
            if self.progress + self.kernel.now - since >= self.behaviour.needed - 1e-6:
                self.progress = self.behaviour.needed
                for agent in self.running():
                    agent.wake()

    def _break_whole(self, key: tuple[str, int]) -> None:
        if self._whole_since is not None and self._whole_since[0] == key:
            self.progress += max(0.0, self.kernel.now - self._whole_since[1])
            self._whole_since = None

    def _echo(self, m: Membership) -> None:
        """The collectives of the others' workers fail, or hang."""
        if self.behaviour.needed is not None and self.progress >= self.behaviour.needed:
            return
        for mate in self.running():
            if mate.stage < self.stage:
                continue
            same = mate.in_round is not None and mate.in_round.prefix == m.prefix
            if same and self.kernel.rng.random() < self.behaviour.echo:
                self.kernel.after(self.kernel.between(0.02, 3.0), mate.fail_worker, mate.in_round, 1, True)

    def look(self) -> None:
        for agent in self.running():
            agent.look()

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

    def _watched(self) -> bool:
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
                if not self._watched():
                    self.oracle.happens(old.uid, INFRASTRUCTURE, harmless=True)  # the cause cannot be known
            elif old is None:
                self.kernel.say(f"pod {key[1]} is made")
            elif item.value.deleting and not old.value.deleting:
                self.kernel.say(f"pod {key[1]} is being deleted")
