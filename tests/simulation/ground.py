"""What agents stand on: what they write, what they leave in a round's store, and whom they tell the truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.relay import CutOff, RelayReport
from elasticjob.contract.reports import (
    DrainReport,
    FailureReport,
    ProgressReport,
    RoundReport,
    StartsReport,
)
from elasticjob.core.participant import Membership

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class LeaseValue(NamedTuple):
    """A participant's Lease."""

    holder: str
    writer: str
    record: ParticipantRecord | None = None
    failure: FailureReport | None = None
    report: RoundReport | None = None
    progress: ProgressReport | None = None
    finished: str = ""
    drain: DrainReport | None = None
    fenced: str = ""
    starts: StartsReport | None = None
    relay: RelayReport | None = None


class Network(Protocol):
    """What an agent needs to know of the machines below it."""

    def reaches_api(self, agent: Agent) -> bool:
        """Whether its path to the API server is whole."""

    def connected(self, one: Agent, other: Agent) -> bool:
        """Whether packets pass both ways between two agents."""

    def answers(self, agent: Agent) -> bool:
        """Whether the kernel under it answers."""

    def agent_ended(self, agent: Agent) -> None:
        """A container has ended."""


@dataclass
class RoundKeys:
    """What members leave in a round's store."""

    here: set[int] = field(default_factory=set)
    ranks: dict[str, int] = field(default_factory=dict)
    """By id, once the leader of a large round has told them."""
    heartbeats: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    """Members whose workers have stopped for a planned change. Once there is one, none finishes the round,
    but for those that have less to train."""
    fenced: set[int] = field(default_factory=set)
    """Members whose workers have opened checkpoints that refuse what an earlier round saves."""
    words: list[CutOff] = field(default_factory=list)
    """What members that cannot write have said."""


@dataclass
class Behaviour:
    """How this job's training behaves. ``needed``: seconds of training in all, None: it never ends; a step
    takes one of them. ``steps``: it reports them. ``drains``: it calls ``should_stop``. ``fenced``: its
    checkpoints refuse what an earlier round saves. ``warm``: warm
    workers are on, and with this probability a round's leader says without end that they are being
    prepared. ``relays``: who cannot write tells others, as handlers do; where it is not played, histories are
    those of handlers from before."""

    needed: float | None = None
    steps: bool = False
    drains: bool = False
    fenced: bool = False
    warm: float | None = None
    relays: bool = False
    echo: float = 0.7
    """How probable it is that a worker's collective fails when a peer is lost."""
    slow_stop: float = 0.05
    drift: float = 0.0
    """By how many seconds the members' last steps differ."""
    uneven: float = 0.0
    """How many seconds less the workers of every other slot have to train."""


@dataclass(frozen=True)
class WorkerEnd:
    """How and when a worker failed. ``echo``: because it lost a peer; ``late``: its agent knew already that
    the round was over."""

    at: float
    code: int | None
    echo: bool
    late: bool


class Steps(NamedTuple):
    """The first and the highest step of a round, and when they were done."""

    first: int
    highest: int
    began: float
    grew: float


class After(NamedTuple):
    """What a container's command does once torchrun has ended well: it goes on for so many seconds, then runs
    torchrun ``again``, or ends with this code."""

    seconds: float = 0.0
    code: int = 0
    again: bool = False


class Ground(Protocol):
    """What agents tell the oracle: the truth, which no protocol message carries."""

    behaviour: Behaviour
    stage: int
    """The torchrun of the commands that the job has come to; the first is 1."""

    def done(self, agent: Agent) -> bool:
        """Whether the training of the torchrun that this agent runs is done."""

    def has_less(self, agent: Agent) -> bool:
        """Whether its workers have less to train than those of other slots."""

    def before_torchrun(self) -> float:
        """For how many seconds a container's command does something else first."""

    def after_torchrun(self, agent: Agent) -> After:
        """What follows in its container."""

    def command_failed(self, agent: Agent) -> None:
        """What followed has failed."""

    def agents(self) -> list[Agent]:
        """All agents that ever ran."""

    def by_address(self, address: str) -> Agent | None:
        """The agent whose pod had this IP."""

    def returned(self, agent: Agent, membership: Membership) -> None:
        """``next_rendezvous`` has returned."""

    def left(self, agent: Agent, membership: Membership) -> None:
        """The agent's workers of this round have ended."""

    def worker_failed(self, agent: Agent, membership: Membership, failure: WorkerEnd) -> None:
        """A worker has failed."""

    def steps(self, membership: Membership) -> Steps | None:
        """How far the training of this round has come; None before its first step."""

    def finished(self, agent: Agent, membership: Membership) -> None:
        """The workers have ended well."""

    def opened(self, membership: Membership) -> None:
        """The workers of this member have opened checkpoints that are fenced."""

    def missed(self, membership: Membership) -> None:
        """The leader of this round says that members are silent."""

    def unheard(self, agent: Agent) -> None:
        """A write of its Lease has failed, or its torchrun ends before it is done."""

    def knows(self, agent: Agent) -> bool:
        """Whether the API server accepts its token: that of a pod that is gone for 2 s at most."""
