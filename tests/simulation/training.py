"""How the job trains, as far as agents see it and tell of it: they run on it as their ``Ground``."""

from __future__ import annotations

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.core.participant import Membership
from elasticjob_operator.plan.state.evidence import APPLICATION, INFRASTRUCTURE
from tests.simulation.agent import Agent
from tests.simulation.cluster import Cluster
from tests.simulation.ground import After, Behaviour, Steps, WorkerEnd
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import Oracle
from tests.simulation.past import Word
from tests.simulation.traits import Traits
from tests.simulation.truth import RoundKey

TOKEN_SECONDS = 2.0
"""For so long the token of a pod that is gone is accepted."""


class Training:
    """The part of ``World`` that agents see."""

    kernel: Kernel
    traits: Traits
    oracle: Oracle
    cluster: Cluster
    behaviour: Behaviour
    progress: float
    stage: int
    stands: tuple[RoundKey, Steps] | None
    """The round whose training loop hangs, and how far it had come."""
    mended: bool
    others: bool
    """Whether others create the pods."""
    _failures: int
    """How many commands have failed after their torchrun."""
    _whole_since: tuple[RoundKey, float] | None
    _stopped: tuple[RoundKey, float] | None
    """The last round of which a worker failed, and when it did first."""
    _by_address: dict[str, Agent]
    _gone: dict[str, float]
    """Since when the object of a pod is gone, by its UID."""

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
        """The agent's workers of this round have ended. Those that had less to train were not needed."""
        key = (membership.job_uid, membership.number)
        needed = membership.group_rank not in self.oracle.finished.get(key, ())
        if needed:
            self._break_whole(key)
        self.oracle.agent_left(agent, membership)
        if needed:
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
            self.oracle.past.unheard.add(Word.of(agent.uid, record))

    def missed(self, membership: Membership) -> None:
        """See ``Ground``."""
        key = (membership.job_uid, membership.number)
        said = [(a.uid, a.core.announced) for a in self.agents() if a.in_round is None]
        left = {Word.of(uid, record) for uid, record in said if record is not None}
        if any(word.round == key for word in left - self.oracle.past.heard):
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

    def running(self) -> list[Agent]:
        """Agents that live."""
        return [a for a in self.cluster.agents.values() if a.alive]

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
