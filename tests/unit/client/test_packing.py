"""A function that becomes a script, and what cannot."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticjob_client import Jobs, NotFound, Rejected
from elasticjob_client.packing import prepared, script_of
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


RATE: float = 0.5


def with_a_module() -> None:
    print(os.getcwd())


def with_a_default(rate: float = RATE) -> None:
    print(rate)


def with_inner_functions(steps: int = 1) -> Path:
    import os as mine

    class Own:
        size: Path = RATE  # type: ignore[assignment]

    def inner() -> str:
        return mine.getcwd() + helper()

    def helper() -> str:
        return Own.__name__

    return [inner() for _ in range(steps)]  # type: ignore[return-value]


def with_annotations_only(path: Path | None = None, again: bool = False) -> Path | None:
    from pathlib import Path as Mine

    found: Path = Mine()
    if again:
        with_annotations_only()
    return path or found


def with_a_global() -> float:
    global RATE
    RATE = 1
    return RATE


@functools.lru_cache
def cached() -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*given: Any) -> Any:
        return function(*given)

    return wrapper


@decorated
def wrapped() -> None: ...


async def coroutine() -> None: ...


def generator() -> Any:
    yield


def renamed() -> Any:
    found = lambda: None  # noqa: E731
    found.__name__ = found.__qualname__ = "found"
    return found


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
        (with_a_module, {}, "with_a_module uses `os` from outside: import or define it in its body"),
        (with_a_default, {}, "a default of with_a_default uses `RATE` from outside: write the value itself"),
        (with_inner_functions, {}, "with_inner_functions uses `RATE` from outside"),
        (wrapped, {}, "wrapped is decorated with decorated: expected none; the script adds @record"),
        (cached, {}, "is not a function with a name"),
        (coroutine, {}, "coroutine has to run when it is called: expected no `async def`"),
        (generator, {}, "no `yield` in it"),
        (decorated(with_annotations_only), {}, "with_annotations_only is wrapped by another function"),
        (renamed(), {}, "is not a function with a name"),
    ],
)
def test_what_cannot_travel_says_why(function: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        script_of(function, arguments)


@pytest.mark.parametrize("function", [with_annotations_only, with_a_global])
def test_what_needs_nothing_from_outside_travels(function: Any) -> None:
    compile(script_of(function), "train.py", "exec")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": -1}, "gpus is -1: expected 0 or more"),
        ({"replicas": 0}, "replicas is 0: expected 1 or more"),
        ({"replicas": "2"}, "replicas is '2': expected a number"),
        ({"replicas": True}, "replicas is True: expected a number"),
        ({"volumes": ["a"]}, "expected a dict of mount paths and claims"),
        ({"volumes": {"/x:ro": "a"}}, "volumes has '/x:ro': 'a': expected a dict of mount paths and claims"),
        ({"volumes": {"/x": "a:rw"}}, "volumes has '/x': 'a:rw'"),
        ({"volumes": {"a": "b"}}, "volumes has 'a': 'b'"),
        ({"environment": ["A=SECRET"]}, "environment is of type list: expected a dict of names and values"),
        ({"environment": {1: "SECRET"}}, "environment has the key 1: expected a dict"),
        ({"environment": {"A": b"SECRET"}}, r"environment\['A'\] is of type bytes: expected text"),
        ({"arguments": "--key SECRET"}, "expected a list, and what is given is of type str"),
        ({"environment": {"A": None}}, r"environment\['A'\] is None: expected text or a number"),
        ({"memory": 64}, 'expected text with a unit, such as "64Gi"'),
        ({"nproc_per_node": [2]}, "nproc_per_node is of type list: expected text or a number"),
        ({"image": None}, "image is None: expected text"),
        ({"image": ""}, "image is empty"),
        ({"name": ""}, "name is empty"),
        ({"arguments": [None]}, "an argument is None: expected text or a number"),
        ({"what": None}, "None cannot be trained: expected a function, or the path of a script"),
    ],
)
def test_a_wrong_field_says_what_is_expected(asked: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"what": __file__, "image": "i", "name": None, "arguments": [], "code": None}
    given.update({name: asked.pop(name) for name in list(asked) if name in given})
    with pytest.raises((TypeError, ValueError), match=said) as refused:
        prepared(**given, asked=asked)
    assert "SECRET" not in str(refused.value)


def test_numbers_are_taken_as_text() -> None:
    asked = {"nproc_per_node": 2, "environment": {"A": 1}, "cpu": 4}
    job, _ = prepared(__file__, "i", None, [1, "b"], None, asked)
    assert job.spec.nproc_per_node == 2
    assert job.spec.template
    (container,) = job.spec.template["spec"]["containers"]
    assert container["command"][2:] == ["1", "b"]
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert container["resources"]["requests"] == {"cpu": "4"}


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
