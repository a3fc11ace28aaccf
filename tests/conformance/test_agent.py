"""torch's tests of its local agent, re-told: what workers get and what comes back, on the backend k8s.

Upstream: ``test/distributed/elastic/agent/server/test/local_elastic_agent_test.py``;
see docs/internals/conformance.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.conformance import bodies, work
from tests.conformance.agents import Agent, Stage
from tests.conformance.bodies import Run, Workers
from tests.conformance.peer_run import PeerRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def run_one(stage: Stage, workers: Workers) -> Run:
    """A job of one agent, to its good end."""
    stage.job.create(1)
    return stage.succeeded(stage.agent(workers))[0]


def run_all(stage: Stage, *workers: Workers) -> list[Run]:
    """A job with an agent for each of these, to its good end."""
    stage.job.create(len(workers))
    return stage.succeeded(*stage.agents_of(workers))


@pytest.mark.matrix
def test_dummy_compute(stage: Stage) -> None:
    run = run_one(stage, Workers(work.compute, count=2))
    assert run.return_values == {0: ("tensor", 100, 100), 1: ("tensor", 100, 100)}


def test_happy_function(stage: Stage) -> None:
    run = run_one(stage, Workers(work.happy, count=2))
    assert run.return_values == {0: None, 1: None}


def test_function_with_return_value(stage: Stage) -> None:
    run = run_one(stage, Workers(work.echo, ("foo",), count=2))
    assert run.return_values == {0: "foo", 1: "foo"}


@pytest.mark.matrix
def test_the_environment_of_workers(stage: Stage) -> None:
    """All that torch promises is there; MASTER_ADDR is the leader's pod; the round is there as a token."""
    stage.job.create(2)
    agents = stage.agents_of([Workers(work.environment, count=2, role="r", max_restarts=3)] * 2)
    runs = stage.succeeded(*agents)
    found = {rank: env for run in runs for rank, env in run.return_values.items()}
    assert sorted(found) == [0, 1, 2, 3]
    leader = next(agent for agent in agents if 0 in agent.run().return_values)
    for rank, env in found.items():
        assert env["RANK"] == env["ROLE_RANK"] == str(rank)
        assert env["LOCAL_RANK"] == str(rank % 2)
        assert env["GROUP_RANK"] == str(rank // 2)
        assert (env["ROLE_NAME"], env["LOCAL_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) == ("r", "2", "2")
        assert env["WORLD_SIZE"] == env["ROLE_WORLD_SIZE"] == "4"
        assert env["MASTER_ADDR"] == leader.pod.address
        assert env["MASTER_PORT"] == found[0]["MASTER_PORT"]
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("0", "3")
        assert env["TORCHELASTIC_RUN_ID"] == "conformance"
        assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
        assert env["ELASTICJOB_ROUND"] == "1"


@pytest.mark.matrix
def test_simple_dist_sum(stage: Stage) -> None:
    assert run_one(stage, Workers(work.dist_sum, count=2)).return_values == {0: 2, 1: 2}


@pytest.mark.matrix
def test_distributed_sum_homogeneous(stage: Stage) -> None:
    """Two agents with four workers each; the lines of their logs have the prefix that was asked for."""
    prefix = "[${role_name}-${local_rank}:${rank}]:"
    one = Workers(work.dist_sum, count=4, role="sum", log_prefix=prefix)
    runs = run_all(stage, one, one)
    assert sorted(rank for run in runs for rank in run.return_values) == list(range(8))
    assert {size for run in runs for size in run.return_values.values()} == {8}


@pytest.mark.matrix
def test_distributed_sum_heterogeneous(stage: Stage) -> None:
    """Three agents with one, two and three workers."""
    runs = run_all(stage, *(Workers(work.dist_sum, count=count, role="sum") for count in (1, 2, 3)))
    assert sorted(rank for run in runs for rank in run.return_values) == list(range(6))
    assert sorted(len(run.return_values) for run in runs) == [1, 2, 3]


@pytest.mark.matrix
def test_sad_function(stage: Stage) -> None:
    """A worker's exception reaches the agent's result and the file that torchrun's caller reads."""
    stage.job.create(1)
    pod = stage.pods(1)[0]
    reply = stage.folder / "error.json"
    pod = type(pod)(
        pod.name, pod.uid, pod.address, {**pod.environment, "TORCHELASTIC_ERROR_FILE": str(reply)}
    )
    agent = stage.agent(Workers(work.sad, count=2), pod)
    assert stage.ended(agent) == [1]
    failures = agent.run().failures
    assert failures
    assert {failure.rank for failure in failures} <= {0, 1}
    assert {failure.exit_code for failure in failures} == {1}
    message = json.loads(reply.read_text())["message"]
    assert "sad because I throw" in message["message"]
    assert any(message["message"] in failure.message for failure in failures)


def test_bipolar_function(stage: Stage) -> None:
    """Half of the workers fail each time: the agent's restarts are used up, each in a round of its own."""
    stage.job.create(1)
    agent = stage.agent(Workers(work.bipolar, count=4, max_restarts=2))
    assert stage.ended(agent) == [1]
    run = agent.run()
    assert run.failed
    assert run.remaining_restarts == 0
    stage.until(stage.job.is_left, "it is seen that the agent has given up")
    assert stage.job.causes() == ["Started", "WorkerFailed", "WorkerFailed"]


def check_ranks(runs: Sequence[Run], sizes: dict[str, int]) -> None:
    """Global ranks are 0..n-1, those of a role 0..m-1, both consecutive within an agent."""
    everybody = [(run.role, info) for run in runs for info in run.return_values.values()]
    world = sum(sizes.values())
    assert sorted(info.rank for _, info in everybody) == list(range(world))
    assert {info.world_size for _, info in everybody} == {world}
    by_role: dict[str, list[int]] = defaultdict(list)
    for role, info in everybody:
        assert info.role_world_size == sizes[role]
        by_role[role].append(info.role_rank)
    assert {role: sorted(ranks) for role, ranks in by_role.items()} == {
        role: list(range(size)) for role, size in sizes.items()
    }
    for run in runs:
        infos = [run.return_values[rank] for rank in sorted(run.return_values)]
        assert [info.rank for info in infos] == sorted(run.return_values)
        assert len({info.group_rank for info in infos}) == 1
        for ranks in ([i.rank for i in infos], [i.role_rank for i in infos]):
            assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))
    assert sorted({info.group_rank for _, info in everybody}) == list(range(len(runs)))


ROLES = ("master", "trainer", "trainer", "trainer", "trainer", "ps", "ps")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param((8, 1, 2, 3, 4, 5, 2), id="heterogeneous"),
        pytest.param((1, 4, 4, 4, 4, 3, 3), id="homogeneous"),
    ],
)
def test_correct_rank_assignment(stage: Stage, counts: tuple[int, ...]) -> None:
    """Seven agents of three roles."""
    runs = run_all(
        stage,
        *(Workers(work.role_info, count=count, role=role) for role, count in zip(ROLES, counts, strict=True)),
    )
    sizes: dict[str, int] = defaultdict(int)
    for role, count in zip(ROLES, counts, strict=True):
        sizes[role] += count
    check_ranks(runs, dict(sizes))


def test_torch_rpc(stage: Stage) -> None:
    runs = run_all(
        stage,
        Workers(work.rpc_asker, ("hello world",), role="asker"),
        Workers(work.rpc_answerer, role="answerer"),
    )
    assert list(runs[0].return_values.values()) == ["hello world from the other"]


@pytest.mark.matrix
def test_workers_drift_success(stage: Stage) -> None:
    """Two agents whose workers end apart: the first waits in the exit barrier for the other."""
    runs = run_all(stage, *[Workers(work.sleep, (2.0, 1), exit_barrier_timeout=8)] * 2)
    assert [run.return_values for run in runs] == [{0: 0}, {1: 1}]


def test_workers_drift_fail(stage: Stage) -> None:
    """An exit barrier without patience does not fail the job (here it waits as long as the round lasts)."""
    runs = run_all(stage, *[Workers(work.sleep, (3.0, 1), exit_barrier_timeout=0)] * 2)
    assert [run.return_values for run in runs] == [{0: 0}, {1: 1}]


def test_barrier_failed(stage: Stage) -> None:
    """An exit barrier that raises does not fail the job; that the agent ended well is known by its pod."""
    stage.job.create(1)
    pod = stage.pods(1)[0]
    arguments = (stage.place(pod), Workers(work.happy), str(stage.folder / "workers"), "test error")
    agent = stage.start(bodies.run_agent_without_barrier, arguments, pod)
    if isinstance(stage.job, PeerRun):  # the only one that could have seen the end of its pod has ended
        stage.ended(agent)
        late = stage.agent(Workers(work.sad))
        assert stage.ended(late) == [0], "the next pod of the run finds that it is over"
    assert stage.succeeded(agent)[0].return_values == {0: None}
    assert agent.said[-1] == 1, "the barrier was entered once"


def test_shutdown_called(stage: Stage) -> None:
    """When an agent has ended nothing of its workers is left, and the handler's threads have ended."""
    stage.job.create(1)
    member = stage.member()
    assert member.ask("next").world_size == 1
    assert member.ask("shutdown") == (True, True, [])


@pytest.mark.matrix
def test_rank_one_fails_once(stage: Stage) -> None:
    run = run_one(stage, Workers(work.compute_after_one_kill, count=2, max_restarts=3))
    assert run.return_values == {0: ("tensor", 100, 100), 1: ("tensor", 100, 100)}
    assert run.remaining_restarts == 2
    assert stage.job.causes() == ["Started", "WorkerFailed"]


def test_no_exit_barrier_on_failure(stage: Stage) -> None:
    """Both agents have a worker that fails: both end at once, neither waits for the other for 300 s."""
    stage.job.create(2)
    workers = Workers(work.bipolar_sleep, (60.0,), count=2, exit_barrier_timeout=300)
    agents: list[Agent] = stage.agents_of([workers] * 2)
    assert stage.ended(*agents) == [1, 1], "and long before the workers of even ranks would have ended"
    assert all(agent.run().failed for agent in agents)
