"""A drain with one rank lost at any moment: the others wait no longer than docs/use/planned-changes.md says.

``python -m tests.simulation.test_drains N`` plays N of them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob_operator.plan.state.evidence import APPLICATION, INFRASTRUCTURE, PREEMPTION
from elasticjob_operator.plan.state.model import JobSpec, MemoryCheckpoints
from tests.rules import without
from tests.simulation.agent import Agent
from tests.simulation.ground import Behaviour
from tests.simulation.violation import Violation
from tests.simulation.world import World

pytestmark = pytest.mark.timeout(3600)

DRAINS = 150
DRAIN_SECONDS = 30.0
WRITES_SECONDS = 3.0
"""For what is decided to be written, heard and looked at."""
BEGIN_SECONDS = 90.0
"""A departure waits for the next pod."""


def scale(to: int) -> Callable[[World, random.Random], None]:
    def change(w: World, rng: random.Random) -> None:
        del rng
        w.disturb(f"scaled to {to}")
        w.change_spec(lambda s: replace(s, replicas=to))

    return change


def suspend(w: World, rng: random.Random) -> None:
    del rng
    w.disturb("the job is suspended")
    w.change_spec(lambda s: replace(s, suspend=True))


def delete(w: World, rng: random.Random) -> None:
    agent = rng.choice(members(w))
    w.disturb(f"{agent.name} is deleted", agent.uid, accounts=(PREEMPTION, INFRASTRUCTURE))
    w.cluster.delete_pod(agent.name)


def evict(w: World, rng: random.Random) -> None:
    agent = rng.choice(members(w))
    reason = rng.choice(("EvictionByEvictionAPI", "PreemptionByScheduler"))
    w.disturb(f"{agent.name} is evicted", agent.uid, accounts=(PREEMPTION,))
    w.cluster.disrupt_pod(agent.name, reason)


CHANGES = (scale(2), scale(4), suspend, delete, evict)


def worker_fails(w: World, agent: Agent) -> float:
    w.disturb(f"a worker of {agent.name} fails", agent.uid, accounts=(APPLICATION,))
    assert agent.in_round is not None
    agent.fail_worker(agent.in_round, -9)
    return 0.0


def is_killed(w: World, agent: Agent) -> float:
    w.disturb(f"{agent.name} is killed", agent.uid)
    agent.end(137)
    return agent.core.latest.limits.suspect if agent.core.latest is not None else 0.0


def hangs(w: World, agent: Agent) -> float:
    """Its pod looks well, and its port accepts connections: the deadline is all that there is."""
    w.disturb(f"{agent.name} hangs for ever", agent.uid)
    agent.hangs = True
    agent.freeze()
    return DRAIN_SECONDS


LOSSES = (worker_fails, is_killed, hangs)


def has_ended_well(agent: Agent) -> bool:
    """Whether no worker of it is left that could fail."""
    return agent.core.announced is not None and agent.core.announced.state == AnnouncedState.SUCCEEDED.value


def members(w: World) -> list[Agent]:
    """The agents whose workers train."""
    return [agent for agent in w.running() if agent.in_round is not None]


def passed(w: World, what: Callable[[], bool], seconds: float) -> bool:
    """Let time pass until it is so."""
    until = w.kernel.now + seconds
    while not what() and w.kernel.now < until:
        w.kernel.run(0.05)
    return what()


def play(seed: int) -> str:
    """One drain, and one rank lost. Returns what became of it, "" if all is well."""
    rng = random.Random(f"drain {seed}")
    spec = JobSpec(replicas=3, min_replicas=2, spares=rng.choice((0, 0, 1)), template={})
    echo, uneven = rng.choice((0.0, 0.7)), rng.choice((0.0, 300.0))
    # Workers that wait in a drain end as soon as they are told to.
    behaviour = Behaviour(600.0, True, drains=True, echo=echo, slow_stop=0.0)
    w = World(seed, 0.0, spec, behaviour)
    w.behaviour.uneven = uneven

    def drains() -> bool:
        return w.status.current_round.drain is not None

    def begun() -> bool:
        r = w.status.current_round
        return r.established_time is not None and len(members(w)) == 3

    if not passed(w, begun, 120.0):
        return "no round was established"
    w.kernel.run(8.0)
    number = w.status.current_round.number
    rng.choice(CHANGES)(w, rng)
    if not passed(w, drains, BEGIN_SECONDS):
        return f"no drain: {w.status.current_round}"
    began = w.kernel.now
    deadline = min(DRAIN_SECONDS, w.kernel.now - began + DRAIN_SECONDS)

    def over() -> bool:
        r = w.status.current_round
        return r.number > number or r.phase != "Active"

    lost, limit, how = 0.0, deadline, ""
    if not passed(w, over, rng.choice((0.0, 0.1, 1.0, 3.0, 10.0)) * rng.random()):
        present = [a for a in members(w) if not a.frozen]
        if present:
            victim = rng.choice(present)
            loss = rng.choice(LOSSES[1:] if has_ended_well(victim) else LOSSES)
            limit, lost, how = loss(w, victim), w.kernel.now - began, loss.__name__
    bound = min(deadline, lost + limit + 5.0) + WRITES_SECONDS
    if not passed(w, over, 2 * DRAIN_SECONDS):
        return f"the drain does not end ({how})\n{w.kernel.readable()}"
    took = w.kernel.now - began
    if took > bound:
        said = f"the drain took {took:.1f} s, {how} after {lost:.1f} s: more than {bound:.1f}"
        return f"{said}\n{w.kernel.readable()}"
    return ""


# shows: a member is lost, or a worker fails, while the round drains
def test_no_rank_waits_longer_in_a_drain_than_is_stated() -> None:
    for seed in range(DRAINS):
        wrong = play(seed)
        assert not wrong, f"seed {seed}: {wrong}"


def suspend_after_growth(seed: int) -> str:
    """A job with memory checkpoints grows, and is suspended while it drains or soon after. Returns the rule
    that is broken, "" for none."""
    rng = random.Random(f"growth {seed}")
    spec = JobSpec(replicas=2, min_replicas=1, template={}, memory_checkpoints=MemoryCheckpoints(1))
    w = World(seed, 0.0, spec, Behaviour(600.0, True, drains=True, slow_stop=0.0))

    def suspended() -> bool:
        return w.status.is_true("Suspended")

    assert passed(w, lambda: w.status.current_round.established_time is not None, 120.0)
    w.kernel.run(8.0)
    scale(3)(w, rng)
    assert passed(w, lambda: w.status.current_round.drain is not None, BEGIN_SECONDS)
    w.kernel.run(rng.choice((0.0, 0.5, 2.0, 4.0)) * rng.random())
    suspend(w, rng)
    try:
        assert passed(w, suspended, 4 * DRAIN_SECONDS), w.kernel.readable()
    except Violation as violation:
        return violation.rule
    return ""


# shows: the job is suspended or shrinks right after it has grown, with `memoryCheckpoints`
def test_a_suspension_right_after_growth_waits_until_storage_has_the_steps() -> None:
    assert {suspend_after_growth(seed) for seed in range(40)} == {""}
    with without("storage has the steps before pods go"):
        assert "Memory" in {suspend_after_growth(seed) for seed in range(40)}


if __name__ == "__main__":
    bad = 0
    for one in range(int(sys.argv[1])):
        if found := play(one):
            bad += 1
            print(f"seed {one}: {found[:400] if bad > 1 else found}", flush=True)
    print(f"{sys.argv[1]} drains, {bad} bad")
