"""The whole simulated world, what can be done to it, and what must be true when it has come to rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticjob.core.participant import Membership
from elasticjob_operator.plan.causes import APPLICATION, INFRASTRUCTURE, SCALING
from elasticjob_operator.plan.model import Job, JobSpec, Limit, Pod
from elasticjob_operator.plan.status import JobStatus
from tests.simulation.agent import Agent
from tests.simulation.api import Api, Item, Key
from tests.simulation.cluster import Cluster
from tests.simulation.ground import Behaviour, Steps, WorkerEnd
from tests.simulation.kernel import Kernel
from tests.simulation.operator import JOB_KEY, ROUND_KEY, JobValue, Operator
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.truth import RoundKey
from tests.simulation.workload import Workload

SETTLE_SECONDS = 600.0
REST_SECONDS = 120.0
SUSPEND_SECONDS = 120.0
"""The bound for the pods of a suspended job to end: their grace, and a node that has to be NotReady first."""


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
        self.clocks, self.wall = clocks, wall
        self.api = Api(kernel)
        self.oracle = Oracle(lambda: kernel.now)
        self.oracle.pod_uids = self._live_pod_uids  # type: ignore[method-assign]
        self.oracle.dead = lambda uid: uid in self.cluster.agents and not self.cluster.agents[uid].alive  # type: ignore[method-assign]
        self.api.committed.append(self.oracle.committed)
        self.api.committed.append(self._tell)
        needed = kernel.between(10.0, 200.0) if rng.random() < 0.6 else None
        self.behaviour = behaviour or Behaviour(
            needed, rng.random() < 0.5, drift=rng.choice((0.0, 2.0, 20.0))
        )
        self.progress = 0.0
        self._whole_since: tuple[RoundKey, float] | None = None
        self._stands: tuple[RoundKey, Steps] | None = None
        """The round whose training loop hangs, and how far it had come."""
        self.cluster = Cluster(self.api, kernel, rng.choice((2, 3)), self._start_agent)
        self.cluster.owner_is_there = lambda pod: pod.uid.partition("-")[0] in (self.job_uid, "other")
        self._by_address: dict[str, Agent] = {}
        self._shaken: set[str] = set()
        self.mended = False
        self._jobs = 0
        self._spec = spec
        self.others = rng.random() < 0.2 and spec is None
        """Whether the pods are somebody else's."""
        self.cluster.over = lambda: self.status.finished
        self.cluster.restarts_in_place = self.others and rng.random() < 0.5
        self.oracle.restarts_in_place = self.cluster.restarts_in_place
        self.make_job()
        if self.others:
            self.workload = Workload(kernel, self.api, self._wanted)
        self.operators: list[Operator] = []
        self.start_operator()

    # -- the world as agents see it (``Ground``) -----------------------------------------------------------

    def agents(self) -> list[Agent]:
        """Everybody who ever ran."""
        return list(self.cluster.agents.values())

    def by_address(self, address: str) -> Agent | None:
        """Whose pod had this IP."""
        return self._by_address.get(address)

    def returned(self, agent: Agent, membership: Membership) -> None:
        """``next_rendezvous`` has returned."""
        self.kernel.say(f"{agent.name} is rank {membership.rank} of {membership.size} in {membership.number}")
        self.oracle.agent_returned(agent, membership)
        key = (membership.job_uid, membership.number)
        if len(self.oracle.training.get(key, ())) == membership.size and self._all_live(membership):
            self._whole_since = (key, self.kernel.now + 3.0)
            if self.behaviour.needed is not None:
                left = max(0.0, self.behaviour.needed - self.progress) + 3.0
                self.kernel.after(left, self._trained, key)

    def left(self, agent: Agent, membership: Membership) -> None:
        """The agent's workers of this round have ended."""
        self._break_whole((membership.job_uid, membership.number))
        self.oracle.agent_left(agent, membership)
        self._echo(membership)
        self._look()

    def worker_failed(self, agent: Agent, membership: Membership, failure: WorkerEnd) -> None:
        """A worker has failed."""
        how = "late" * failure.late or "from its peer's loss" * failure.echo or f"with {failure.code}"
        self.kernel.say(f"a worker of {agent.name} fails in round {membership.number} {how}")
        self.oracle.agent_failed(agent, membership, failure.echo or failure.late)

    def finished(self, agent: Agent, membership: Membership) -> None:
        """The workers have ended well."""
        self.kernel.say(f"{agent.name} has finished round {membership.number}")
        self.oracle.agent_finished(membership)

    def steps(self, membership: Membership) -> Steps | None:
        """How far the training of this round has come."""
        key = (membership.job_uid, membership.number)
        if self._stands is not None and self._stands[0] == key:
            return self._stands[1]
        if self._whole_since is None or self._whole_since[0] != key or self.kernel.now < self._whole_since[1]:
            return None
        began = self._whole_since[1]
        trained = self.kernel.now - began
        if self.behaviour.needed is not None:
            trained = min(trained, max(0.0, self.behaviour.needed - self.progress))
        grew = began + int(trained)
        return Steps(int(self.progress), int(self.progress) + int(trained), began, grew)

    def stands_still(self, membership: Membership) -> bool:
        """Whether the training loop of this round hangs."""
        return self._stands is not None and self._stands[0] == (membership.job_uid, membership.number)

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
            spares=rng.choice((0, 0, 0, 1, 2)),
            hang_timeout=rng.choice((None, 30, 90)) if self.behaviour.steps else None,
        )

    def hang_workers(self) -> None:
        """The training loop of the present round stands still from now on; the leader is the one to tell."""
        limit = self.job.job.spec.hang_timeout if self.job is not None else None
        leader = next((a for a in self.running() if a.in_round is not None and a.in_round.rank == 0), None)
        if limit is None or leader is None or leader.in_round is None or self._whole_since is None:
            return
        membership, key = leader.in_round, self._whole_since[0]
        steps = self.steps(membership)
        if steps is None or key != (membership.job_uid, membership.number):
            return
        self.disturb(f"the training loop of round {membership.number} hangs")
        self.oracle.happens("*", APPLICATION, key=key)
        self._break_whole(key)
        self._stands = (key, steps)
        self.kernel.after(limit, leader.find_hung, membership, float(limit))

    def delete_job(self, uid: str) -> None:
        """The ElasticJob is deleted; the garbage collector follows."""
        self.api.remove(JOB_KEY, uid)
        for key, item in list(self.api.items.items()):
            if key[0] == "pod":
                self.kernel.after(self.kernel.between(0.1, 3.0), self.cluster.collect, key[1], item.uid)
            elif key == ROUND_KEY:
                self.kernel.after(self.kernel.between(0.1, 3.0), self._collect_record, item.uid)

    def _collect_record(self, uid: str) -> None:
        item = self.api.items.get(ROUND_KEY)
        if item is not None and item.uid == uid:
            self.api.remove(ROUND_KEY, uid)

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
        operator.delete_pod = self.cluster.delete_pod
        operator.delete_job = self.delete_job
        self.operators.append(operator)
        return operator

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
        """Say what is done, and to whom; whoever beats looks up. ``lightly``: not for long enough to break a
        round that is established. ``accounts``: those that may bear it."""
        self.kernel.say(f"** {what}")
        for uid in uids:
            self.oracle.happens(uid, *accounts, lightly=lightly and uid not in self._shaken)
            if lightly:
                self._shaken.add(uid)  # the next one may be too much
        self._look()

    def change_spec(self, change: Callable[[JobSpec], JobSpec]) -> None:
        """A user edits the job."""
        item = self.api.items.get(JOB_KEY)
        if item is None:
            return
        value: JobValue = item.value
        job = replace(value.job, generation=value.job.generation + 1, spec=change(value.job.spec))
        self.oracle.happens("*", SCALING)
        self.api.put(JOB_KEY, JobValue(job, value.status))

    # -- at rest -------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything that can be mended is mended; what has died is dead."""
        self.kernel.say("** everything is mended")
        self.mended = True
        weather = self.api.weather
        weather.down = weather.slow = weather.loses_answers = False
        weather.lag = 0.0
        self.cluster.no_room = False
        self.cluster.severed.clear()
        for node in self.cluster.nodes.values():
            if not node.exists or not node.power:
                self.cluster.add_node_again(node)
            node.api = node.peers = True
            node.frozen = False
            node.kubelet = True
            self.cluster.changed(node)
        for agent in self.running():
            if not agent.hangs:
                agent.thaw()
        for operator in self.operators:
            operator.thaw()
        for operator in self.operators:
            operator.api_path = True
        for operator in self.operators[:-1]:
            if operator.alive:
                operator.die()
        if not self.operators[-1].alive:
            self.start_operator()
        if self.api.items.get(JOB_KEY) is None:
            self.make_job()
        for agent in self.running():
            self.oracle.happens(agent.uid, INFRASTRUCTURE)
        self._look()

    def settle(self) -> None:
        """After the faults end: everyone who can be in a round is in one, or the status says what it waits
        for; and then nothing happens any more. Raises Violation."""
        self.heal()
        if self.job is not None and self.job.job.spec.suspend:
            self._settle_suspended()
        self.kernel.run(SETTLE_SECONDS)
        self._check_rest()
        number, phase = self.status.round.number, self.status.round.phase
        passes = self.operators[-1].passes
        self.kernel.run(REST_SECONDS)
        if (self.status.round.number, self.status.round.phase) not in ((number, phase), (number, "Closed")):
            raise Violation("Liveness", f"round {number} {phase} became {self.status.round} without a cause")
        if self.operators[-1].passes - passes > 60:
            raise Violation("Liveness", f"{self.operators[-1].passes - passes} passes for nothing")
        self._check_rest()

    def _settle_suspended(self) -> None:
        """A suspended job has no pods and no round; then it is resumed."""
        self.kernel.run(SUSPEND_SECONDS)
        alive, status = self.running(), self.status
        if not status.finished:
            if any(not a.hangs for a in alive) or status.round.phase == "Active":
                text = f"suspended, round {status.round.number} is {status.round.phase}"
                raise Violation("Suspension", f"{text}, {[a.name for a in alive]} still run")
            if not status.is_true("Suspended"):
                raise Violation("Suspension", f"suspended, and the status says {status.conditions}")
        self.kernel.say("** the job is resumed")
        self.change_spec(lambda s: replace(s, suspend=False))

    def _check_rest(self) -> None:
        value = self.job
        assert value is not None
        if any(a.hangs and self._nobody_may_tell(a, value.status) for a in self.running()):
            return
        self.oracle.judge_accounts(value)
        status, spec = value.status, value.job.spec
        alive = self.running()
        if status.finished:
            if alive:
                raise Violation("Liveness", f"finished, and {[a.name for a in alive]} still run")
            return
        training = status.condition("Training")
        said = f"{training.reason}: {training.message}" if training is not None else "nothing"
        if self.others and not alive:
            return  # all have ended, and their controller makes no more
        if self._stands is not None and self._stands[0] == (value.job.uid, status.round.number):
            raise Violation("Liveness", f"round {status.round.number} hangs; the status says {said}")
        if status.round.phase != "Active" or status.round.established is None:
            raise Violation("Liveness", f"no round after everything was mended; the status says {said}")
        if status.round.members != spec.replicas:
            raise Violation(
                "Liveness", f"{status.round.members} of {spec.replicas} members; the status says {said}"
            )
        ours = [a for a in alive if a.in_round is not None and a.in_round.number == status.round.number]
        # Pods of others that a smaller job does not need stand by.
        there = spec.pods if not self.others else len(alive)
        if len(ours) != status.round.members or len(alive) != there:
            raise Violation(
                "Liveness",
                f"in round {status.round.number}: {[a.name for a in ours]}, alive: {[a.name for a in alive]}",
            )
        pods = [k[1] for k, i in self.api.items.items() if k[0] == "pod"]
        leases = [k[1] for k in self.api.items if k[0] == "lease"]
        if set(leases) - set(pods):
            raise Violation("Liveness", f"Leases without pods: {set(leases) - set(pods)}")

    def _nobody_may_tell(self, agent: Agent, status: JobStatus) -> bool:
        """Whether this agent, which hangs for ever, is beyond what the rendezvous can mend: its pod is not
        ours, it has never announced itself, or everybody else has finished."""
        if self.others or ("lease", agent.name) not in self.api.items:
            return True
        mates = [m for m in status.members() if m.uid != agent.uid]
        return agent.in_round is not None and all(m.state == "Succeeded" for m in mates)

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
                    agent.train_on()

    def _break_whole(self, key: tuple[str, int]) -> None:
        if self._whole_since is not None and self._whole_since[0] == key:
            self.progress += max(0.0, self.kernel.now - self._whole_since[1])
            self._whole_since = None

    def _echo(self, m: Membership) -> None:
        """The collectives of the others' workers fail, or hang."""
        if self.behaviour.needed is not None and self.progress >= self.behaviour.needed:
            return
        for mate in self.running():
            same = mate.in_round is not None and mate.in_round.prefix == m.prefix
            if same and self.kernel.rng.random() < self.behaviour.echo:
                self.kernel.after(self.kernel.between(0.02, 3.0), mate.fail_worker, mate.in_round, 1, True)

    def _look(self) -> None:
        for agent in self.running():
            agent.look()

    def _live_pod_uids(self) -> set[str]:
        """Pods that have not ended, and whose node nobody has given up."""
        return {
            i.uid
            for k, i in self.api.items.items()
            if k[0] == "pod" and not i.value.ended and self.cluster.is_there(i.value)
        }

    def _watched(self) -> bool:
        """Whether an operator sees what happens now."""
        operator, weather = self.operators[-1], self.api.weather
        up = operator.alive and not operator.frozen and operator.api_path
        return up and not (weather.down or weather.slow or operator.watches["pods"].lags)

    def _tell(self, key: Key, old: Item | None, item: Item | None) -> None:
        """What people would want to read in a trace."""
        if key == JOB_KEY and item is not None:
            a = old.value.status if old is not None else JobStatus()
            b = item.value.status
            if (a.round.number, a.round.phase) != (b.round.number, b.round.phase):
                members = " ".join(m.pod for m in b.members()) if b.round.phase == "Active" else ""
                self.kernel.say(
                    f"status: round {b.round.number} {b.round.phase} [{members}] "
                    f"{b.round.cause}: {b.round.message}"
                )
            elif a.round.established is None and b.round.established is not None:
                self.kernel.say(f"status: round {b.round.number} is established")
        elif key == ROUND_KEY:
            self.kernel.say(
                "record: deleted" if item is None else f"record: {item.value.number} {item.value.phase}"
            )
        elif key[0] == "pod":
            if item is None:
                assert old is not None
                self.kernel.say(f"pod {key[1]} is gone")
                if not self._watched():
                    self.oracle.happens(old.uid, INFRASTRUCTURE, harmless=True)  # nobody can tell why
            elif old is None:
                self.kernel.say(f"pod {key[1]} is made")
            elif item.value.deleting and not old.value.deleting:
                self.kernel.say(f"pod {key[1]} is being deleted")
