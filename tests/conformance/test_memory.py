"""Memory checkpoints of real torchruns: what is killed costs one step at most, and no checkpoint is read."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticjob.contract import names
from tests.conformance import bodies
from tests.conformance.agents import Agent, Stage
from tests.conformance.pods import Pod

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

SCRIPT = str(Path(__file__).parent / "scripts" / "remembers.py")
STEPS = 5
"""How far a round trains before it is disturbed."""
TRAIN_SECONDS = 240.0
"""Its workers are no forks: each imports torch, and another quarter of it for its optimizer."""


class Training:
    """The pods of one job and what their workers say."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.agents: list[Agent] = []

    def start(self, *nodes: str, slots: tuple[int, ...] = ()) -> list[Agent]:
        """torchruns in new pods on these nodes."""
        return self.start_in(self.pods(*nodes, slots=slots))

    def pods(self, *nodes: str, slots: tuple[int, ...] = ()) -> list[Pod]:
        """New pods on these nodes."""
        found = []
        for number, node in enumerate(nodes):
            (pod,) = self.stage.pods(1, slot=slots[number] if slots else None)
            memory = {names.MEMORY_ENV: str(64 << 20), names.NODE_ENV: node}
            found.append(replace(pod, environment={**pod.environment, **memory}))
        return found

    def start_in(self, pods: list[Pod]) -> list[Agent]:
        """torchruns in these pods."""
        words = self.stage.torchrun_arguments("--max-restarts=9", SCRIPT, str(self.stage.work))
        started = [self.stage.start(bodies.run_launcher, (words,), pod) for pod in pods]
        self.agents += started
        return started

    def said(self, number: int) -> list[dict[str, Any]]:
        """What each rank of a round has said last."""
        found = sorted(self.stage.work.glob(f"{number}-*.json"))
        return [json.loads(path.read_text()) for path in found]

    def trains(self, number: int, ranks: int) -> list[dict[str, Any]]:
        """Wait until all ranks of a round have trained for some steps."""

        def trained() -> bool:
            said = self.said(number)
            return len(said) == ranks and all(one["trained"] >= one["resumed"] + STEPS for one in said)

        self.stage.until(trained, f"round {number} trains with {ranks} ranks", TRAIN_SECONDS)
        return self.said(number)

    def lost_at_most_one_step(self, number: int) -> None:
        """The round has resumed where the one before was, but for what was skipped, and that was counted."""
        before, now = self.said(number - 1), self.said(number)
        furthest = max(one["trained"] for one in before)
        (resumed,) = {one["resumed"] for one in now}
        assert resumed >= furthest - 1 - max(one["skipped"] for one in before), (before, now)
        assert {one["world"] for one in now} == {len(now)}

    def ends(self, number: int, agents: list[Agent]) -> None:
        (self.stage.work / "stop").touch()
        assert self.stage.ended(*agents) == [0] * len(agents)
        assert len({one["weights"] for one in self.said(number)}) == 1
        assert list((self.stage.work / "checkpoints").glob("checkpoint-*")) == [], (
            "it was saved to memory only"
        )


@pytest.mark.matrix
@pytest.mark.parametrize("start", ["cold", pytest.param("warm", marks=pytest.mark.slow)])
def test_a_killed_worker_costs_one_step_at_most(stage: Stage, start: str) -> None:
    """Its agent still has what it saved. Warm workers stay warm, though the way to the agent is another."""
    stage.warm = start == "warm"
    stage.job.create(2)
    training = Training(stage)
    agents = training.start("a", "b")
    first = training.trains(1, 2)
    os.kill(first[1]["pid"], signal.SIGKILL)
    training.trains(2, 2)
    training.lost_at_most_one_step(2)
    training.ends(2, agents)
    for agent in agents:
        assert "starts cold" not in agent.text(), agent.tail()
        assert ("starts warm" in agent.text()) == stage.warm, agent.tail()


@pytest.mark.matrix
@pytest.mark.slow
def test_from_3_to_3_to_3_to_2_no_step_is_lost(stage: Stage) -> None:
    """A worker, an agent that is replaced, and one that is not, rank 0's among them."""
    stage.job.create(3, later=2)
    training = Training(stage)
    agents = training.start("a", "b", "c")
    first = training.trains(1, 3)

    os.kill(first[2]["pid"], signal.SIGKILL)
    training.trains(2, 3)
    training.lost_at_most_one_step(2)

    leader = next(agent for agent in agents if stage.job.ranks()[agent.pod.name] == 0)
    pods = training.pods("d", slots=(int(leader.pod.name.rpartition("-")[2]),))
    leader.kill()  # a run that may shrink waits for a replacement whose pod is there
    (another,) = training.start_in(pods)
    agents = [agent for agent in agents if agent is not leader] + [another]
    training.trains(3, 3)
    training.lost_at_most_one_step(3)

    lost = agents.pop(0)
    lost.kill()
    stage.job.scale(2)
    training.trains(4, 2)
    training.lost_at_most_one_step(4)

    training.ends(4, agents)
    assert stage.job.causes() == ["Started", "WorkerFailed", "PodLost", "PodLost"]


@pytest.mark.slow
def test_members_on_one_node_are_copied_to_another_one(stage: Stage) -> None:
    """Two pods on each of two nodes: both pods of a node are lost at once, and no step is."""
    stage.job.create(4)
    training = Training(stage)
    agents = training.start("a", "a", "b", "b")
    training.trains(1, 4)
    for agent in agents[:2]:
        agent.kill()
    agents = agents[2:] + training.start("c", "c", slots=(0, 1))
    training.trains(2, 4)
    training.lost_at_most_one_step(2)
    training.ends(2, agents)
