"""A server that is away for a while, and connections that break: who follows or waits goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from elasticjob_client import AsyncJobs, Jobs, NoServer, NotFound
from elasticjob_client.tell.lines import Line
from tests.unit.client.conftest import container
from tests.unit.client.gate import Gate, gated
from tests.unit.client.made import NOW, ago
from tests.unit.client.server import JOBS, PODS, Server, refusal
from tests.unit.client.test_watching import changed, over

BACK = ["the API server answers again"]
GONE = refusal(404, "NotFound", 'elasticjobs.elasticjob.dev "mnist" not found', "mnist")


@pytest.fixture
def gate(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """In front of a server whose watches and logs do not end by themselves."""
    monkeypatch.setattr("elasticjob_client.patience.LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("elasticjob_client.jobs.POLL_SECONDS", 0.05)
    monkeypatch.setattr("elasticjob_client.following.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("elasticjob_client.async_following.LOOK_SECONDS", 0.05)
    server.put(changed(1))
    server.held = ("watch=true", "follow=true")
    server.watches = ["", ""]
    started = {"running": {"startedAt": ago(900)}}
    server.answers[PODS]["items"] = server.answers[PODS]["items"][:1]
    server.answers[PODS]["items"][0]["status"]["containerStatuses"] = [container(started)]
    with gated(server) as found:
        yield found


async def collected(asked: Any) -> list[Any]:
    return [one async for one in asked]


def sync(call: Callable[[Any], Any], said: list[str]) -> Any:
    with Jobs(notice=said.append) as jobs:
        found = call(jobs)
        return list(found) if isinstance(found, Iterator) else found


def on_asyncio(call: Callable[[Any], Any], said: list[str]) -> Any:
    async def run() -> Any:
        async with AsyncJobs(notice=said.append) as jobs:
            found = call(jobs)
            return await (found if asyncio.iscoroutine(found) else collected(found))

    return asyncio.run(run())


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(params=[sync, on_asyncio])
def begun(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a method in a thread of its own; gives what it returns, and the notices."""

    def begin(call: Callable[[Any], Any], said: list[str]) -> Future[Any]:
        found: Future[Any] = Future()

        def run() -> None:
            try:
                found.set_result(request.param(call, said))
            except Exception as error:  # noqa: BLE001 - the test judges it
                found.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return found

    return begin


def looked(server: Server) -> bool:
    return any(path.startswith(f"{JOBS}/mnist") for _, path, _ in server.asked)


@pytest.mark.parametrize("call", [lambda jobs: jobs.wait("mnist"), lambda jobs: jobs.watch("mnist")])
def test_a_server_that_comes_back(
    server: Server, gate: Gate, begun: Callable[..., Any], call: Callable[[Any], Any]
) -> None:
    said: list[str] = []
    result = begun(call, said)
    until(lambda: looked(server))
    time.sleep(0.3)
    gate.close()
    time.sleep(1.5)
    server.put(over(2))
    gate.open()
    found = result.result(20)
    last = found[-1] if isinstance(found, list) else found
    assert last.status.terminal_state == "Complete"
    assert len(said) == 2, said
    assert "does not answer" in said[0]
    assert said[0].endswith("; trying again for 5 minutes")
    assert said[1:] == BACK


def test_a_server_that_stays_away(
    server: Server, gate: Gate, begun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_client.patience.AWAY_SECONDS", 0.3)
    result = begun(lambda jobs: jobs.wait("mnist"), [])
    until(lambda: looked(server))
    time.sleep(0.3)
    gate.close()
    with pytest.raises(NoServer, match="does not answer"):
        result.result(20)


def test_the_time_of_a_wait_is_over_while_the_server_is_away(
    server: Server, gate: Gate, begun: Callable[..., Any]
) -> None:
    result = begun(lambda jobs: jobs.wait("mnist", timeout_seconds=1.5), [])
    until(lambda: looked(server))
    time.sleep(0.3)
    gate.close()
    with pytest.raises(
        TimeoutError, match=r"is not Complete yet; it is Training.*as last seen: the API server"
    ):
        result.result(20)


def stamp(seconds: int) -> str:
    return ago(-seconds).replace("Z", ".123456789Z")


def test_a_log_goes_on_where_its_connection_broke(
    server: Server, gate: Gate, begun: Callable[..., Any]
) -> None:
    log = f"{PODS}/mnist-0-0/log"
    server.answers[log] = f"{stamp(1)} a\n{stamp(2)} b\n{stamp(2)} b\n"
    said: list[str] = []
    result = begun(lambda jobs: jobs.logs("mnist", follow=True), said)
    until(lambda: any("follow=true" in path for _, path, _ in server.asked))
    time.sleep(0.3)
    server.answers[log] += f"{stamp(2)} c\n{stamp(3)} d\n"
    server.held = ()
    gate.close()
    time.sleep(0.5)
    server.put(over(2))
    gate.open()
    found: list[Line] = result.result(20)
    assert [line.text for line in found] == ["a", "b", "b", "c", "d"]
    asked = [path for _, path, _ in server.asked if "follow=true" in path]
    assert "sinceTime" not in asked[0]
    assert f"sinceTime={NOW:%Y-%m-%dT%H}%3A00%3A02Z" in asked[-1]
    assert said[1:] == BACK


def test_a_log_without_times_goes_on_too(server: Server, gate: Gate, begun: Callable[..., Any]) -> None:
    server.no_times, server.held = True, ("timestamps=false",)
    log = f"{PODS}/mnist-0-0/log"
    server.answers[log] = "a\n"
    result = begun(lambda jobs: jobs.logs("mnist", follow=True), [])
    until(lambda: any("timestamps=false" in path for _, path, _ in server.asked))
    time.sleep(0.3)
    server.answers[log] = "b\n"
    server.held = ()
    gate.reset()
    time.sleep(0.3)
    server.put(over(2))
    assert [line.text for line in result.result(20)] == ["a", "b"]


@pytest.mark.parametrize(
    "call",
    [
        lambda jobs: jobs.wait("mnist"),
        lambda jobs: jobs.watch("mnist"),
        lambda jobs: jobs.logs("mnist", follow=True),
    ],
)
def test_a_job_that_is_deleted_meanwhile(
    server: Server, gate: Gate, begun: Callable[..., Any], call: Callable[[Any], Any]
) -> None:
    result = begun(call, [])
    until(lambda: looked(server))
    time.sleep(0.3)
    server.answers[f"{JOBS}/mnist"] = GONE
    gate.close()
    time.sleep(1.5)
    gate.open()
    with pytest.raises(NotFound, match=r"^ElasticJob research/mnist has been deleted$"):
        result.result(20)


async def test_many_logs_at_once(server: Server, gate: Gate) -> None:
    del gate
    server.answers[f"{PODS}/mnist-0-0/log"] = f"{stamp(1)} a\n"
    with Jobs() as jobs:
        several = [jobs.logs("mnist", follow=True) for _ in range(110)]
        assert {next(lines).text for lines in several} == {"a"}
        assert jobs.get("mnist")
        for lines in several:
            lines.close()  # type: ignore[attr-defined]


def test_who_stops_to_listen_leaves_no_thread_and_no_connection(server: Server, gate: Gate) -> None:
    del gate
    server.answers[f"{PODS}/mnist-0-0/log"] = f"{stamp(1)} a\n"
    with Jobs() as jobs:
        before = threading.active_count()
        for _ in range(3):
            lines = jobs.logs("mnist", follow=True)
            assert next(lines).text == "a"
            lines.close()  # type: ignore[attr-defined]
        until(lambda: threading.active_count() <= before + 3)
        assert not [t for t in threading.enumerate() if "_follow" in t.name]
