"""A job and its code: what is left where their creation fails, and what is said of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_client import AsyncJobs, ElasticJob, Jobs, NoServer, Rejected
from elasticjob_client._async.launching import launch
from elasticjob_client._async.requests import AsyncRequests
from elasticjob_client.errors import Unfinished
from elasticjob_client.manifest import config_map
from tests.terminal import INTERRUPT, terminal
from tests.unit.client.clients import until
from tests.unit.client.conftest import body
from tests.unit.client.server import JOBS, Server, refusal
from tests.unit.client.test_watching import created

MAPS = "/api/v1/namespaces/research/configmaps"
CODE = f"{MAPS}/mnist-code"
DELETE = (
    "without the job, delete it with `kubectl delete configmap mnist-code -n research --ignore-not-found`"
)
BUSY = refusal(504, "Timeout", "a webhook takes long")
NO = refusal(403, "Forbidden", "no")
EXISTS = refusal(409, "AlreadyExists", "exists", "mnist-code")
UNKNOWN = f"whether job mnist was created is not known; ConfigMap mnist-code stays; {DELETE}"
PERHAPS = f"ConfigMap mnist-code may have been created, and job mnist was not; {DELETE}"
OUTLASTS = f"job mnist was created, but ConfigMap mnist-code may outlast it; {DELETE}"


@pytest.fixture
def ready(server: Server) -> Server:
    """It creates what it is asked to."""
    server.answers[f"POST {JOBS}"] = body()
    for path in (f"POST {MAPS}", f"PATCH {CODE}", f"DELETE {CODE}"):
        server.answers[path] = {"metadata": {"name": "mnist-code"}}
    return server


def asked(server: Server) -> list[str]:
    """The requests that are not a dry run."""
    return [f"{verb} {path.partition('?')[0]}" for verb, path, _ in server.asked if "dryRun" not in path]


def launched(said: list[str]) -> Any:
    with Jobs(notice=said.append) as jobs:
        return jobs.run(__file__, image="i", name="mnist")


def test_a_job_whose_code_cannot_be_given_to_it_runs(ready: Server) -> None:
    ready.answers[f"PATCH {CODE}"] = refusal(403, "Forbidden", "no", "mnist-code")
    said: list[str] = []
    assert launched(said).name == "mnist"
    assert said[0].startswith(f"{OUTLASTS} (cannot change ConfigMap research/mnist-code: no")


def refused_after_a_dry_run(server: Server, answer: Any) -> None:
    """The server takes a dry run, and gives this answer to the real one."""
    real = server.answers[f"POST {JOBS}"]

    class Answers(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            if key == f"POST {JOBS}":
                return answer if asked(server)[-1:] == [f"POST {JOBS}"] else real
            return super().get(key, default)

    server.answers = Answers(server.answers)


def test_the_code_of_a_job_that_is_refused_is_deleted(ready: Server) -> None:
    refused_after_a_dry_run(ready, refusal(409, "AlreadyExists", "exists", "mnist"))
    said: list[str] = []
    with pytest.raises(Rejected):
        launched(said)
    assert asked(ready) == [f"POST {MAPS}", f"POST {JOBS}", f"DELETE {CODE}"]
    assert said == []
    ready.answers[f"DELETE {CODE}"] = NO
    with pytest.raises(Rejected):
        launched(said)
    assert said[0].startswith(f"ConfigMap mnist-code of job mnist was not deleted; {DELETE} (cannot delete")


def test_the_code_of_a_job_that_may_come_yet_stays(ready: Server) -> None:
    """Though it is not there at this moment: the server may still wait for a webhook."""
    ready.answers[f"{JOBS}/mnist"] = refusal(404, "NotFound", "no", "mnist")
    refused_after_a_dry_run(ready, BUSY)
    said: list[str] = []
    with pytest.raises(NoServer):
        launched(said)
    assert asked(ready) == [f"POST {MAPS}", f"POST {JOBS}"]
    assert said[0].startswith(f"{UNKNOWN} (cannot create")


def test_code_that_may_have_come_is_told_of(ready: Server) -> None:
    ready.answers[f"POST {MAPS}"] = BUSY
    said: list[str] = []
    with pytest.raises(NoServer):
        launched(said)
    assert said[0].startswith(f"{PERHAPS} (cannot create ConfigMap")
    said.clear()
    ready.answers[f"POST {MAPS}"] = EXISTS
    ready.answers[CODE] = {"metadata": {"name": "mnist-code"}}
    with pytest.raises(Rejected):
        launched(said)
    assert said == [], "it is somebody else's"


@pytest.mark.parametrize("code", [400, 409, 422])
def test_why_a_policy_refuses_the_code_is_said(ready: Server, code: int) -> None:
    """It is not what is said of a name that another ConfigMap has."""
    ready.answers[f"POST {MAPS}"] = refusal(code, "Conflict" if code == 409 else "Invalid", "no such labels")
    said: list[str] = []
    with pytest.raises(Rejected, match="cannot create ConfigMap research/mnist-code: no such labels"):
        launched(said)
    assert asked(ready) == [f"POST {MAPS}"]
    assert said == []


class Asked:
    """A client whose answers are sent to the coroutine that asks it."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __await__(self) -> Generator[None, Any, Any]:
        return (yield)


def launch_until(count: int, said: list[str]) -> Any:
    """A launch that waits for the answer of its request of this number; the first is the dry run."""
    client: Any = Asked()
    requests = AsyncRequests(client, "research", "", said.append)
    begun = launch(requests, ElasticJob.from_dict(body()), config_map("mnist", {"train.py": b""}))
    begun.send(None)
    for _ in range(count - 1):
        begun.send(body())
    return begun


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, Unfinished])
@pytest.mark.parametrize(("count", "left"), [(1, ""), (2, PERHAPS), (3, UNKNOWN), (4, OUTLASTS)])
def test_an_interrupted_launch_says_what_is_left(error: type[BaseException], count: int, left: str) -> None:
    """And asks nothing more: it ends at once."""
    said: list[str] = []
    with pytest.raises(error):
        launch_until(count, said).throw(error())
    assert said == ([left] if left and error is not Unfinished else [])
    said.clear()
    launch_until(count, said).close()
    assert said == ([left] if left else [])


async def test_a_cancelled_launch_ends_at_once_and_says_what_is_left(ready: Server) -> None:
    ready.late = (f"{JOBS}?fieldManager",)
    said: list[str] = []
    async with AsyncJobs(notice=said.append) as jobs:
        task = asyncio.ensure_future(jobs.run(__file__, image="i", name="mnist"))
        await asyncio.to_thread(until, lambda: f"POST {JOBS}" in asked(ready))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert said == [UNKNOWN]
    assert asked(ready) == [f"POST {MAPS}", f"POST {JOBS}"]


@pytest.mark.parametrize(
    ("late", "begun"),
    [(f"{MAPS}?", f"POST {MAPS}"), (f"{JOBS}?fieldManager", f"POST {JOBS}"), (f"{CODE}?", f"PATCH {CODE}")],
)
def test_a_second_ctrl_c_ends_a_run_at_once(server: Server, tmp_path: Path, late: str, begun: str) -> None:
    words = created(server, tmp_path)
    server.answers[f"{JOBS}/mnist"] = refusal(404, "NotFound", "no", "mnist")
    server.late = (late,)
    with terminal([sys.executable, "-m", "elasticjob_client.cli.main", *words]) as shown:
        until(lambda: begun in asked(server))
        shown.press(INTERRUPT)
        shown.wait(lambda text: "Ctrl-C again does not wait for it" in text)
        shown.press(INTERRUPT)
        assert shown.end() == 130, shown.text
        text = " ".join(shown.text.split())
    assert "`elasticjob status -n research mnist` shows whether the job mnist was created" in text
    assert "without the job, or after it, delete its code: `kubectl -n research delete configmap" in text
    assert "Traceback" not in text
    assert asked(server)[-1] == begun, "nothing more was asked"
