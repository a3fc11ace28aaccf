"""torch's tests of agents that are killed, re-told: each kill is at a known moment.

Upstream kills the second agent before it has joined (a new process needs seconds to import torch); here it is
killed while both train, and in a test of its own before that. Upstream runs ``double_agent_fault_tolerance``
for etcd alone: on c10d it fails (docs/internals/conformance.md, D1).
"""

from __future__ import annotations

import signal

import pytest

from tests.conformance import work
from tests.conformance.agents import Stage
from tests.conformance.bodies import Workers

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

SIGKILL = -signal.SIGKILL


def summing(stage: Stage, count: int = 2) -> Workers:
    """Workers that make their process group, wait for the gate, then sum."""
    return Workers(work.gated_sum, (str(stage.work),), count=count, max_restarts=2)


@pytest.mark.matrix
def test_double_agent_fault_tolerance(stage: Stage) -> None:
    """One of two agents is killed while both train; a new pod takes its rank, no restart is used up."""
    stage.job.create(2)
    first, second = stage.agents_of([summing(stage)] * 2)
    stage.here("here", 1, 4)
    second.kill()
    third = stage.agent(summing(stage), stage.pods(1, slot=1)[0])
    stage.here("here", 2, 4)
    stage.open_gate()
    runs = stage.succeeded(first, third)
    assert [run.return_values for run in runs] == [{0: 4, 1: 4}, {2: 4, 3: 4}]
    assert [run.remaining_restarts for run in runs] == [2, 2]
    assert stage.job.causes() == ["Started", "PodLost"]
    assert second.exit_code == SIGKILL


@pytest.mark.matrix
def test_double_agent_fault_tolerance_in_place(stage: Stage) -> None:
    """The killed agent comes back in the same pod, as a container with restartPolicy Always does."""
    stage.job.create(2)
    first, second = stage.agents_of([summing(stage)] * 2)
    stage.here("here", 1, 4)
    second.kill(report=False)
    again = second.restart()
    stage.here("here", 2, 4)
    stage.open_gate()
    runs = stage.succeeded(first, again)
    assert [sorted(run.return_values) for run in runs] == [[0, 1], [2, 3]]
    assert stage.job.causes() == ["Started", "PodRestarted"]


def test_double_agent_fault_tolerance_rank_0(stage: Stage) -> None:
    """The same for the agent that leads: the store goes with it, training does not."""
    stage.job.create(2)
    first, second = stage.agents_of([summing(stage)] * 2)
    stage.here("here", 1, 4)
    first.kill()
    third = stage.agent(summing(stage), stage.pods(1, slot=0)[0])
    stage.here("here", 2, 4)
    stage.open_gate()
    runs = stage.succeeded(third, second)
    assert [sorted(run.return_values) for run in runs] == [[0, 1], [2, 3]]
    assert stage.job.causes() == ["Started", "PodLost"]


def test_an_agent_is_killed_before_it_has_joined(stage: Stage) -> None:
    """What upstream's test does: nothing was running yet, so the first round is the only one."""
    stage.job.create(2)
    pods = stage.pods(2)
    first, second = stage.agents_of([summing(stage)] * 2, pods)
    second.signal(signal.SIGKILL)
    stage.ended(second)
    joined_before = second.pod.name in stage.job.ranks()
    third = stage.agent(summing(stage), stage.pods(1, slot=1)[0])
    stage.here("here", 2 if joined_before else 1, 4)
    stage.open_gate()
    stage.succeeded(first, third)
    assert stage.job.causes() == (["Started", "PodLost"] if joined_before else ["Started"])


@pytest.mark.matrix
def test_double_agent_elastic(stage: Stage) -> None:
    """One of two agents is killed and not started again: the other goes on alone, at half the size."""
    stage.job.create(2, minReplicas=1)
    first, second = stage.agents_of([summing(stage)] * 2)
    stage.here("here", 1, 4)
    second.kill()
    stage.here("here", 2, 2)
    stage.open_gate()
    assert stage.succeeded(first)[0].return_values == {0: 2, 1: 2}
    assert stage.job.causes() == ["Started", "PodLost"]


def test_double_agent_elastic_rank_0(stage: Stage) -> None:
    """The same when the agent that leads is the one that is killed."""
    stage.job.create(2, minReplicas=1)
    first, second = stage.agents_of([summing(stage)] * 2)
    stage.here("here", 1, 4)
    first.kill()
    stage.here("here", 2, 2)
    stage.open_gate()
    assert stage.succeeded(second)[0].return_values == {0: 2, 1: 2}


def test_a_worker_is_killed_on_one_agent(stage: Stage) -> None:
    """One restart of one agent; the other restarts its workers too, and its own restarts stay as they are."""
    stage.job.create(2)
    workers = Workers(work.compute_after_one_kill, count=1, max_restarts=3)
    gated = Workers(work.gated, (str(stage.work),), count=1, max_restarts=3)
    first, second = stage.agents_of([gated, workers])
    stage.here("here", 2, 1)
    stage.open_gate()
    runs = stage.succeeded(first, second)
    assert [run.remaining_restarts for run in runs] == [3, 2]
    assert stage.job.causes() == ["Started", "WorkerFailed"]


@pytest.mark.matrix
def test_a_standby_takes_over(stage: Stage) -> None:
    """Three agents for two places: one stands by, and is a member the moment that it is needed."""
    stage.job.create(2)
    agents = stage.agents_of([summing(stage)] * 2)
    stage.here("here", 1, 4)
    standby = stage.agent(summing(stage))
    stage.until(lambda: stage.job.states().get(standby.pod.name) == "Standby", "the third stands by")
    agents[1].kill()
    stage.here("here", 2, 4)
    assert stage.job.ranks() == {agents[0].pod.name: 0, standby.pod.name: 1}
    stage.open_gate()
    stage.succeeded(agents[0], standby)
    assert stage.job.causes() == ["Started", "PodLost"]
