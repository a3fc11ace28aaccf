"""torch's tests of torchrun and ``elastic_launch``, re-told on the backend k8s.

Upstream: ``test/distributed/launcher/{run_test,api_test}.py``; see docs/internals/conformance.md. Most
launchers are forked from a process that has imported torch; ``stage.torchrun`` is the command itself.

Each test runs once with cold workers and once with warm ones: nothing but their start may be different.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.conformance import bodies, work
from tests.conformance.agents import Agent, Stage
from tests.conformance.bodies import Workers
from tests.conformance.peer_run import PeerRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

SCRIPT = str(Path(__file__).parent / "scripts" / "touch.py")
SHELL_SCRIPT = str(Path(__file__).parent / "scripts" / "touch.sh")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Warm workers import torch, which the script of these tests does not: the others of them are slow."""
    quick = metafunc.definition.name == "test_launch_user_script_python"
    warm = pytest.param("warm", marks=() if quick else pytest.mark.slow)
    metafunc.parametrize("start", ["cold", warm], indirect=True)


@pytest.fixture(autouse=True)
def start(stage: Stage, request: pytest.FixtureRequest) -> None:
    """How workers start."""
    stage.warm = request.param == "warm"


def started_as_wanted(stage: Stage, *launchers: Agent) -> None:
    """All workers that started were warm, or with warm workers off all were cold."""
    for launcher in launchers:
        assert ("starts warm" in launcher.text()) == stage.warm, launcher.tail()
        assert "starts cold" not in launcher.text(), launcher.tail()


def launch(stage: Stage, *arguments: str, nproc: int = 1) -> Agent:
    """torchrun with the arguments of this job, then these."""
    words = stage.torchrun_arguments(*arguments, nproc=nproc)
    return stage.start(bodies.run_launcher, (words,), stage.pods(1)[0])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def complete(stage: Stage) -> None:
    stage.until(lambda: stage.job.over("Complete"), "the job is Complete")


def touched(stage: Stage) -> dict[int, int]:
    """Of each worker that came to its end: its rank and the world size that it saw."""
    return {int(f.name): int(f.read_text()) for f in stage.work.iterdir() if f.name.isdigit()}


@pytest.mark.matrix
def test_launch_user_script_python(stage: Stage) -> None:
    stage.job.create(1)
    launcher = launch(stage, "--nnodes=1", SCRIPT, str(stage.work), nproc=4)
    assert stage.ended(launcher) == [0]
    assert touched(stage) == dict.fromkeys(range(4), 4)
    started_as_wanted(stage, launcher)
    complete(stage)


def test_launch_user_script_not_python(stage: Stage) -> None:
    stage.job.create(1)
    launcher = launch(stage, "--no-python", SHELL_SCRIPT, str(stage.work), nproc=2)
    assert stage.ended(launcher) == [0]
    assert touched(stage) == {0: 2, 1: 2}
    assert ("starts cold: its command is not this Python" in launcher.text()) == stage.warm, launcher.tail()


@pytest.mark.matrix
def test_launch_elastic_multiple_agents(stage: Stage) -> None:
    """``--nnodes=1:2`` with two agents, and a job of two: one round with both."""
    stage.job.create(2, minReplicas=1)
    launchers = [launch(stage, "--nnodes=1:2", SCRIPT, str(stage.work), nproc=2) for _ in range(2)]
    assert stage.ended(*launchers) == [0, 0]
    assert touched(stage) == dict.fromkeys(range(4), 4)
    started_as_wanted(stage, *launchers)
    complete(stage)


def test_launch_elastic_with_fewer_agents_than_the_maximum(stage: Stage) -> None:
    """``--nnodes=1:2`` with one agent. No other is on its way, so it need not be waited for."""
    stage.job.create(2, minReplicas=1)
    assert stage.ended(launch(stage, "--nnodes=1:2", SCRIPT, str(stage.work), nproc=2)) == [0]
    assert touched(stage) == {0: 2, 1: 2}


@pytest.mark.operator_alone("without an operator the bounds are those of --nnodes")
def test_the_job_decides_on_the_number_of_nodes(stage: Stage) -> None:
    """What torch parses from ``--nnodes`` does not count: the record tells which agents are in the round."""
    stage.job.create(1)
    assert stage.ended(launch(stage, "--nnodes=3:5", SCRIPT, str(stage.work))) == [0]
    assert touched(stage) == {0: 1}


def test_min_max_nodes_that_torch_can_not_parse(stage: Stage) -> None:
    """torch's own sentence; the handler is not even made, and the job does not mind."""
    stage.job.create(1)
    launcher = launch(stage, "--nnodes=2:20:30", SCRIPT, str(stage.work))
    assert stage.ended(launcher) == [1]
    assert "nnodes" in launcher.text()
    assert "elasticjob" not in launcher.text().split("Traceback")[0]


@pytest.mark.matrix
def test_launch_with_env_vars(stage: Stage) -> None:
    """The command is ``torchrun train.py``, everything else is in PET_*: what the operator injects."""
    stage.job.create(1)
    environment = {
        "PET_RDZV_BACKEND": "k8s",
        "PET_RDZV_ENDPOINT": stage.endpoint,
        "PET_RDZV_ID": "conformance",
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_CONF": "rounds=peers" if isinstance(stage.job, PeerRun) else "",
    }
    torchrun = stage.torchrun(environment, SCRIPT, str(stage.work))
    assert stage.ended(torchrun) == [0]
    assert touched(stage) == {0: 2, 1: 2}
    started_as_wanted(stage, torchrun)
    complete(stage)


@pytest.mark.matrix
def test_launch_worker_raises(stage: Stage) -> None:
    """The launcher raises ChildFailedError, and nothing of the rendezvous stands in front of it."""
    stage.job.create(1, failurePolicy={"application": {"maxRestarts": 0}})
    launcher = launch(stage, SCRIPT, str(stage.work), "--fail", nproc=2)
    assert stage.ended(launcher) == [1]
    assert launcher.text().rstrip().splitlines()[-1].startswith("=====")
    assert "ChildFailedError" in launcher.text()
    assert "was told to fail" in launcher.text()
    assert "warm/boot" not in launcher.text()
    started_as_wanted(stage, launcher)
    if isinstance(stage.job, PeerRun):
        stage.until(stage.job.is_left, "it is seen that the agent has given up")
        assert not stage.job.over("Failed"), "whether there is another try is for what creates the pods"
        return
    stage.until(lambda: stage.job.over("Failed"), "the job has Failed")
    assert stage.job.condition("Failed")["reason"] == "ApplicationRestartsExhausted"


def test_launch_agent_raises(stage: Stage) -> None:
    """An agent that raises: the launcher raises the same, and the handler was shut down once."""
    stage.job.create(1)
    words = stage.torchrun_arguments(SCRIPT, str(stage.work))
    body = bodies.run_launcher_whose_agent_raises
    launcher = stage.start(body, (words, "raised by the agent"), stage.pods(1)[0])
    assert stage.ended(launcher) == [1]
    assert "KeyError: 'raised by the agent'" in launcher.text()
    assert launcher.said == [1]


@pytest.mark.matrix
def test_elastic_launch_of_a_function(stage: Stage) -> None:
    stage.job.create(1)
    pod = stage.pods(1)[0]
    launcher = stage.start(bodies.run_elastic_launch, (stage.place(pod), work.echo, ("foo",), 2), pod)
    assert stage.ended(launcher) == [0]
    assert launcher.said == [{0: "foo", 1: "foo"}]
    complete(stage)


def test_elastic_launch_of_a_function_that_raises(stage: Stage) -> None:
    stage.job.create(1)
    pod = stage.pods(1)[0]
    launcher = stage.start(bodies.run_elastic_launch, (stage.place(pod), work.sad, (), 2), pod)
    assert stage.ended(launcher) == [1]
    assert "ChildFailedError" in launcher.text()
    assert "sad because I throw" in launcher.text()


def test_a_script_with_a_store_of_its_own(stage: Stage) -> None:
    """``init_process_group(init_method="tcp://...")`` beside the agent's store: upstream's
    ``test_init_method_tcp_with_torchelastic``."""
    if stage.torch < (2, 14):
        pytest.skip(
            "before torch 2.14 any worker is a client when its agent serves a store (pytorch#192113): "
            "nobody would serve the script's own"
        )
    stage.job.create(1)
    workers = Workers(work.dist_sum_at, (f"tcp://127.0.0.1:{free_port()}",), count=2)
    assert stage.succeeded(stage.agent(workers))[0].return_values == {0: 2, 1: 2}


@pytest.mark.matrix
def test_sigterm_in_the_first_rendezvous(stage: Stage) -> None:
    """Ends at once with 143 and says that it leaves; the next agent is not held up."""
    stage.job.create(2)
    waiting = launch(stage, SCRIPT, str(stage.work))
    stage.until(lambda: waiting.pod.name in stage.job.states(), "the first has joined")
    waiting.signal(signal.SIGTERM)
    assert stage.ended(waiting) == [128 + signal.SIGTERM]
    others = [launch(stage, SCRIPT, str(stage.work)) for _ in range(2)]
    assert stage.ended(*others) == [0, 0]
    assert stage.job.causes() == ["Started"]


@pytest.mark.matrix
def test_sigterm_while_training(stage: Stage) -> None:
    """The agent stops its workers and ends; the other trains on without it, and its end is no failure."""
    stage.job.create(2, minReplicas=1)
    agents = [launch(stage, SCRIPT, str(stage.work), "--gate") for _ in range(2)]
    stage.here("here", 1, 2)
    agents[1].signal(signal.SIGTERM)
    assert stage.ended(agents[1]) != [0]
    stage.here("here", 2, 1)
    stage.open_gate()
    assert stage.ended(agents[0]) == [0]
    assert touched(stage) == {0: 1}
    started_as_wanted(stage, *agents)
    complete(stage)
