"""A function that becomes a script, and what cannot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticjob_client import Jobs, NotFound, Rejected
from elasticjob_client.functions import prepared, script_of
from tests.unit.client.conftest import body
from tests.unit.client.server import JOBS, Server, refusal


def train(rate: float, steps: int = 1) -> None:
    import json as of_its_own

    print(of_its_own.dumps([rate, steps]))


RECORD = """\
def record(function):
    return function
"""


def test_a_function_runs_as_a_script(tmp_path: Path) -> None:
    package = tmp_path / "torch/distributed/elastic/multiprocessing"
    (package / "errors").mkdir(parents=True)
    (package / "errors/__init__.py").write_text(RECORD)
    (tmp_path / "train.py").write_text(script_of(train, {"rate": 0.1}))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[0.1, 1]\n"


def test_a_nested_function_is_moved_to_the_margin() -> None:
    def inner() -> None: ...

    assert "\ndef inner() -> None: ...\n" in script_of(inner)


def around(value: int) -> Callable[[], int]:
    def closure() -> int:
        return value

    return closure


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (lambda: None, {}, "is not a function with a name"),
        (print, {}, "is not a function with a name"),
        (around(1), {}, r"closure uses variables of the function around it \(value\)"),
        (train, {}, "cannot be called with these arguments: missing a required argument: 'rate'"),
        (train, {"rate": object()}, "not JSON serializable"),
    ],
)
def test_what_cannot_travel_says_why(function: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        script_of(function, arguments)


def test_arguments_are_those_of_what_is_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a dict"):
        prepared(train, "i", None, ["--lr"], None, {})
    with pytest.raises(ValueError, match="expected a list"):
        prepared("train.py", "i", None, "--lr 1", None, {})
    (tmp_path / "train.py").write_text("print()")
    job, code = prepared(tmp_path / "train.py", "i", None, ["--lr", "1"], None, {"replicas": 2})
    assert job.spec.replicas == 2
    assert job.name.startswith("train-")
    assert code["data"] == {"train.py": "print()"}


def test_a_function_is_submitted_as_a_job(server: Server) -> None:
    maps = "/api/v1/namespaces/research/configmaps"
    server.answers[f"POST {JOBS}"] = body()
    server.answers[f"POST {maps}"] = server.answers[f"PATCH {maps}/mnist-code"] = {
        "metadata": {"name": "mnist-code"}
    }
    with Jobs() as jobs:
        made = jobs.run(train, image="i", name="mnist", arguments={"rate": 0.1}, replicas=2)
        assert made.name == "mnist"
        sent = next(sent for method, path, sent in server.asked if path.startswith(maps))
        assert "def train(rate: float" in sent["data"]["train.py"]
        del server.answers[f"POST {JOBS}"]
        server.answers[f"POST {JOBS}"] = refusal(
            409, "AlreadyExists", 'elasticjobs "mnist" already exists', "mnist"
        )
        with pytest.raises(Rejected, match="already exists"):
            jobs.run(train, image="i", name="mnist", arguments={"rate": 0.1})


async def test_the_asynchronous_client_reads_and_waits(server: Server) -> None:
    from elasticjob_client import AsyncJobs, JobFailed

    async with AsyncJobs() as jobs:
        assert [job.name for job in await jobs.all()] == ["mnist"]
        assert [pod.name for pod in await jobs.pods("mnist")] == ["mnist-0-0", "mnist-1-0", "mnist-1-1"]
        assert (await jobs.wait("mnist", "Training", timeout_seconds=60)).state == "Training"
        found = await jobs.wait("mnist", lambda job: len(job.members) == 2, timeout_seconds=60)
        assert found.members[1].pod_name == "mnist-1-1"
        server.answers[f"{JOBS}/gone"] = refusal(404, "NotFound", "not found", "gone")
        with pytest.raises(NotFound):
            await jobs.get("gone")
        ended = body()
        ended["status"]["terminalState"] = "Failed"
        server.put(ended)
        with pytest.raises(JobFailed):
            await jobs.wait("mnist", "Complete", timeout_seconds=60)
        assert [job.ended async for job in jobs.watch("mnist")] == [True]


@pytest.mark.usefixtures("server")
def test_a_wait_without_time_left_says_what_the_job_does() -> None:
    with (
        Jobs() as jobs,
        pytest.raises(TimeoutError, match=r"research/mnist is not Complete yet; it is Training: round 2"),
    ):
        jobs.wait("mnist", timeout_seconds=0)
