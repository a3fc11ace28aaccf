"""Logs that end too early, or too late: what is opened again, and what stays behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from devcluster.proxy import TcpProxy
from elasticjob_client import ElasticJob, Jobs, NoServer, on_asyncio
from elasticjob_client.explain.lines import Line
from elasticjob_client.following import Log, OpenLogs
from elasticjob_client.on_threads import Follower
from elasticjob_client.pods import Pod
from tests.unit.client.clients import until
from tests.unit.client.conftest import RUNNING, core_pod
from tests.unit.client.made import NOW, after_a_loss, pod
from tests.unit.client.server import PODS, Server
from tests.unit.client.test_away import asked, stamp

ENDED = after_a_loss(terminalState="Complete")


class Pods:
    """A job with one pod, which is over when its log has been read ``often`` times."""

    def __init__(self, often: int, away: bool = False) -> None:
        self.read: list[Log] = []
        self.stopped, self.said = list[Log](), list[str]()
        self._often, self._away, self._looks = often, away, 0

    def look(self) -> tuple[ElasticJob, list[Pod]]:
        self._looks += 1
        if self._away and self.read and self._looks % 2:
            self._away = False
            raise NoServer("the server is away", "away")
        if len(self.read) < self._often:
            return after_a_loss(), [pod("mnist-1-1", started=NOW)]
        return ENDED, [pod("mnist-1-1", started=NOW, ended=NOW)]

    def line(self, log: Log) -> Line:
        self.read.append(log)
        return Line(pod=log.pod.name, text=f"{len(self.read)}")


def lines(pods: Pods, read: Any) -> list[str]:
    found = Follower(pods.look, read, OpenLogs(None, None, None, pods.said.append), pods.said.append)
    return [line.text for line in found.lines()]


def lines_on_asyncio(pods: Pods, read: Any) -> list[str]:
    async def look() -> tuple[ElasticJob, list[Pod]]:
        return pods.look()

    async def run() -> list[str]:
        begun = OpenLogs(None, None, None, pods.said.append)
        found = on_asyncio.Follower(look, read, begun, pods.said.append)
        return [line.text async for line in found.lines()]

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("on_threads", "on_asyncio"):
        monkeypatch.setattr(f"elasticjob_client.{module}.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("elasticjob_client.following._STATUS_SECONDS", 0.05)
    monkeypatch.setattr("elasticjob_client.patience.LONGEST_PAUSE_SECONDS", 0.02)


def test_a_log_that_ends_before_its_container_is_opened_again() -> None:
    pods = Pods(3)

    def read(log: Log) -> Iterator[Line]:
        yield pods.line(log)

    assert lines(pods, read) == ["1", "2", "3"]
    assert len({id(log) for log in pods.read}) == 1
    assert pods.said == []


def test_so_it_is_on_asyncio() -> None:
    pods = Pods(3)

    async def read(log: Log) -> AsyncIterator[Line]:
        yield pods.line(log)

    assert lines_on_asyncio(pods, read) == ["1", "2", "3"]
    assert pods.said == []


def test_a_log_that_only_seems_to_end_too_early_does_not_hold_up_the_end_of_its_job() -> None:
    """A status may say for ever that a container runs."""
    read_by: list[str] = []

    def read(log: Log) -> Iterator[Line]:
        log.where()
        read_by.append(log.pod.name)
        yield from ()

    follower = Follower(
        lambda: (ENDED, [pod("mnist-1-1", started=NOW)]), read, OpenLogs(None, None, None, print), print
    )
    assert list(follower.lines()) == []
    assert read_by == ["mnist-1-1"] * 2


def test_logs_are_opened_again_when_the_server_was_away() -> None:
    """Their connections may be dead, and nobody has said so."""
    pods = Pods(2, away=True)

    def read(log: Log) -> Iterator[Line]:
        ended = threading.Event()
        yield pods.line(log)
        if len(pods.read) == 1:
            with log.reading(ended.set):
                if ended.wait(20):
                    pods.stopped.append(log)

    assert lines(pods, read) == ["1", "2"]
    assert len(pods.stopped) == 1
    assert pods.said == ["away; trying again for 5 minutes", "the API server answers again"]


def test_so_they_are_on_asyncio() -> None:
    pods = Pods(2, away=True)

    async def read(log: Log) -> AsyncIterator[Line]:
        ended = asyncio.Event()
        yield pods.line(log)
        if len(pods.read) == 1:
            with log.reading(ended.set):
                await asyncio.wait_for(ended.wait(), 20)
                pods.stopped.append(log)

    assert lines_on_asyncio(pods, read) == ["1", "2"]
    assert len(pods.stopped) == 1


def followers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith("(_follow)")]


def busy(jobs: Any) -> list[Any]:
    """The connections on which something goes on."""
    pool = jobs.client._client._client._transport._pool
    return [one for one in pool.connections if not one.is_idle() and not one.is_closed()]


def test_who_stops_to_listen_leaves_no_thread_and_no_connection(
    server: Server, gate: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of pods whose answer comes when nobody listens any more, and then is silent."""
    del gate
    monkeypatch.setattr("elasticjob_client.on_threads._JOIN_SECONDS", 0.1)
    server.answers[f"{PODS}/mnist-0-0/log"] = f"{stamp(1)} a\n"
    slow = [f"mnist-{slot}-0" for slot in range(1, 4)]
    server.late = tuple(f"{name}/log" for name in slow)
    for name in slow:
        server.answers[f"{PODS}/{name}/log"] = ""
        server.answers[PODS]["items"].append(core_pod(name, "b", containerStatuses=[RUNNING]))
    with Jobs() as jobs:
        assert not followers()
        for number in range(1, 4):
            found = jobs.logs("mnist", follow=True)
            assert next(found).text == "a"
            until(lambda: len(asked(server, "follow=true")) == number * 4)  # noqa: B023
            found.close()  # type: ignore[attr-defined]
            assert len(followers()) == number * len(slow)
        began = time.monotonic()
        server.go.set()
        until(lambda: not followers())
        assert not busy(jobs)
        assert time.monotonic() - began < 30
