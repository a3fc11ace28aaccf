"""The client for asyncio is the synchronous one: the same methods, requests, results and errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from elasticjob_client import AsyncJobs, ClientError, ElasticJob, Jobs, NotFound, Pod, Rejected
from elasticjob_client.explain.lines import Line
from elasticjob_client.following import Log, OpenLogs
from elasticjob_client.on_asyncio import Follower
from tests.unit.client.conftest import body, container
from tests.unit.client.made import after_a_loss, ago
from tests.unit.client.server import JOBS, PODS, Server, refusal
from tests.unit.client.test_lines import Played

MAPS = "/api/v1/namespaces/research/configmaps"
POD = Pod(name="mnist-1-0", container="train")


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_have_the_same_methods() -> None:
    assert public(Jobs) == public(AsyncJobs)
    for name in public(Jobs) - {"kubectl_flags"}:  # a property
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Jobs, AsyncJobs))
        assert ours.parameters == theirs.parameters, name


@pytest.fixture
def both(server: Server) -> Server:
    """It lets each method do what it does."""
    server.answers[f"POST {JOBS}"] = body()
    server.answers[f"DELETE {PODS}/mnist-1-0"] = {"kind": "Status", "status": "Success"}
    for path in (f"POST {MAPS}", f"PATCH {MAPS}/mnist-code", f"DELETE {MAPS}/mnist-code"):
        server.answers[path] = {"metadata": {"name": "mnist-code"}}
    started = {"running": {"startedAt": ago(900)}}
    server.answers[PODS]["items"][2]["status"]["containerStatuses"] = [container(started)]
    server.answers[f"{PODS}/mnist-1-0/log"] = f"{ago(125)} old\n"
    server.answers[f"{PODS}/mnist-1-1/log"] = f"{ago(110)} new\n"
    return server


def requests(server: Server) -> list[Any]:
    asked = [*server.asked]
    server.asked.clear()
    return asked


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("all", (), {}),
        ("all", (), {"all_namespaces": True}),
        ("raw", ("mnist",), {}),
        ("get", ("mnist",), {}),
        ("refreshed", (after_a_loss(),), {}),
        ("pods", ("mnist",), {}),
        ("events", ("mnist",), {}),
        ("events", ("mnist", [POD]), {}),
        ("tail", (POD, 5), {}),
        ("submit", (body(),), {"dry_run": True}),
        ("run", (__file__,), {"image": "i", "name": "mnist", "replicas": 2}),
        ("scale", ("mnist", 4), {}),
        ("suspend", ("mnist",), {}),
        ("resume", ("mnist",), {}),
        ("delete", ("mnist",), {}),
        ("kill", (POD,), {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_both_ask_the_same_and_find_the_same(
    both: Server, method: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    both.answers["/apis/elasticjob.dev/v1alpha1/elasticjobs"] = both.answers[JOBS]
    with Jobs() as jobs:
        found = getattr(jobs, method)(*arguments, **named)
    asked = requests(both)
    async with AsyncJobs() as jobs_too:
        assert await getattr(jobs_too, method)(*arguments, **named) == found
    assert requests(both) == asked
    assert asked


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        ({}, ["old", "new"]),
        ({"rank": 1}, ["old", "new"]),
        ({"round": 2}, ["new"]),
        ({"since_failure": True}, ["old", "new"]),
        ({"tail": 1}, ["old", "new"]),
    ],
)
async def test_both_read_the_same_lines(asked: dict[str, Any], texts: list[str]) -> None:
    with Jobs() as jobs:
        found = list(jobs.logs("mnist", **asked))
    assert [line.text for line in found] == texts
    async with AsyncJobs() as jobs_too:
        assert [line async for line in jobs_too.logs("mnist", **asked)] == found


async def all_of(asked: Any) -> Any:
    """What a method of the asynchronous client gives, whatever it is."""
    return [one async for one in asked] if isinstance(asked, AsyncIterator) else await asked


@pytest.mark.parametrize(
    ("change", "call"),
    [
        (None, lambda jobs: jobs.logs("mnist", 7)),
        (None, lambda jobs: jobs.run(__file__, image="i", name="No Name")),
        ({"terminalState": "Failed"}, lambda jobs: jobs.scale("mnist", 2)),
        ((404, None), lambda jobs: jobs.get("mnist")),
        (refusal(403, "Forbidden", "no", "mnist"), lambda jobs: jobs.logs("mnist")),
    ],
)
async def test_both_refuse_the_same(both: Server, change: Any, call: Callable[[Any], Any]) -> None:
    if isinstance(change, dict):
        both.answers[f"{JOBS}/mnist"]["status"].update(change)
    elif change:
        both.answers[f"{JOBS}/mnist"] = change
    with Jobs() as jobs, pytest.raises((ClientError, ValueError)) as refused:
        call(jobs)
    async with AsyncJobs() as jobs_too:
        with pytest.raises((ClientError, ValueError)) as refused_too:
            await all_of(call(jobs_too))
    assert (type(refused.value), str(refused.value)) == (type(refused_too.value), str(refused_too.value))


async def test_an_existing_job_keeps_its_code(both: Server) -> None:
    both.answers[f"POST {JOBS}"] = refusal(409, "AlreadyExists", "already exists", "mnist")
    async with AsyncJobs() as jobs:
        with pytest.raises(Rejected, match="already exists"):
            await jobs.run(__file__, image="i", name="mnist")
    assert [verb for verb, _, _ in both.asked] == ["POST"]


async def test_logs_are_followed_until_the_job_has_ended(both: Server) -> None:
    both.answers[f"{JOBS}/mnist"]["status"]["terminalState"] = "Complete"
    async with AsyncJobs() as jobs:
        found = [line async for line in jobs.logs("mnist", follow=True)]
    assert sorted(line.text for line in found) == ["new", "old"]
    assert all(line.time for line in found)


async def test_a_log_that_is_refused_is_a_notice_and_no_line(both: Server) -> None:
    both.answers[f"{JOBS}/mnist"]["status"]["terminalState"] = "Complete"
    both.answers[f"{PODS}/mnist-1-1/log"] = refusal(400, "BadRequest", "no container", "mnist-1-1")
    said: list[str] = []
    async with AsyncJobs(notice=said.append) as jobs:
        found = [line async for line in jobs.logs("mnist", 1, follow=True)]
    with Jobs(notice=said.append) as jobs_too:
        assert list(jobs_too.logs("mnist", 1, follow=True)) == found
    assert {line.pod for line in found} == {"mnist-1-0"}
    assert said == ["cannot read the log of pod mnist-1-1: no container"] * 2


def playing(played: Played) -> tuple[Any, Any]:
    async def look() -> tuple[ElasticJob, list[Pod]]:
        return played.look()

    async def read(log: Log) -> AsyncIterator[Line]:
        for line in played.read(log):
            yield line

    return look, read


async def test_a_log_is_followed_through_the_pods_of_its_rank() -> None:
    played = Played()
    found = [line async for line in Follower(*playing(played), OpenLogs(1, None, None, print), print).lines()]
    assert [(one.text, one.rank) for one in found] == [("from mnist-1-0", 1), ("from mnist-1-1", 1)]
    assert played.read_by == ["mnist-1-0", "mnist-1-1"]


async def test_who_stops_to_follow_leaves_nothing_behind() -> None:
    closed: list[str] = []

    async def endless(log: Log) -> AsyncIterator[Line]:
        try:
            while True:
                yield Line(pod=log.pod.name, text="again", rank=log.rank)
                await asyncio.sleep(0)
        finally:
            closed.append(log.pod.name)

    look, _ = playing(Played())
    lines = Follower(look, endless, OpenLogs(None, None, None, print), print).lines()
    assert (await anext(lines)).text == "again"
    before = len(asyncio.all_tasks())
    await lines.aclose()  # type: ignore[attr-defined]
    assert closed
    assert len(asyncio.all_tasks()) < before


async def test_a_job_that_goes_away_ends_it() -> None:
    async def look() -> tuple[ElasticJob, list[Pod]]:
        raise NotFound("it is gone")

    _, read = playing(Played())
    with pytest.raises(NotFound):
        _ = [line async for line in Follower(look, read, OpenLogs(None, None, None, print), print).lines()]
