"""Connections over which an answer goes on for hours: a dead one is noticed, and any can be ended."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import httpx2
import pytest

from devcluster.proxy import TcpProxy
from elasticjob_client import AsyncJobs, Jobs, NoServer
from elasticjob_client.connection import RESOURCE
from elasticjob_client.following import Log
from elasticjob_client.streams import interrupt
from tests.unit.client.clients import BOTH
from tests.unit.client.server import PODS, Server

LOG = {"namespace": "research", "container": None, "since": None, "tail_lines": None, "timestamps": True}
WATCH = {"namespace": "research", "name": "mnist", "version": "1"}
OPTIONS = {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def options(response: httpx2.Response) -> dict[str, int]:
    found = response.extensions["network_stream"].get_extra_info("socket")
    levels = {"S": socket.SOL_SOCKET, "T": socket.IPPROTO_TCP}
    return {name: found.getsockopt(levels[name[0]], getattr(socket, name)) for name in OPTIONS}


@pytest.fixture(autouse=True)
def _held(server: Server, gate: TcpProxy) -> None:
    del gate
    server.answers[f"{PODS}/mnist-0-0/log"] = "a\n"


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="another platform")
async def test_connections_are_tried_while_they_are_silent() -> None:
    with Jobs() as jobs:
        client: Any = jobs.client
        with client.followed("mnist-0-0", **LOG) as log, client.watched(RESOURCE, **WATCH) as watch:
            assert options(log) == options(watch) == OPTIONS
    async with AsyncJobs() as jobs_too:
        other = jobs_too.client
        async with (
            other.followed("mnist-0-0", **LOG) as log,
            other.watched(RESOURCE, **WATCH) as watch,
        ):
            assert options(log) == options(watch) == OPTIONS


async def test_a_watch_may_be_silent_for_a_time_and_a_log_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob_client.connection._SILENT_WATCH", 0.2)
    monkeypatch.setattr("elasticjob_client.connection._FIRST_LINE_SECONDS", 5.0)
    with Jobs() as jobs:
        client: Any = jobs.client
        with client.followed("mnist-0-0", **LOG) as log:
            assert log.request.extensions["timeout"]["read"] is None
            with client.watched(RESOURCE, **WATCH) as watch, pytest.raises(httpx2.ReadTimeout):
                list(watch.iter_lines())
            ending = threading.Timer(0.1, interrupt, (log,))
            ending.start()
            assert list(log.iter_lines()) == ["a"]
            ending.join()
    async with AsyncJobs() as jobs_too:
        other = jobs_too.client
        async with other.followed("mnist-0-0", **LOG) as log:
            async with other.watched(RESOURCE, **WATCH) as watch:
                with pytest.raises(httpx2.ReadTimeout):
                    _ = [line async for line in watch.aiter_lines()]
            asyncio.get_running_loop().call_later(0.1, interrupt, log)
            assert [line async for line in log.aiter_lines()] == ["a"]


@pytest.mark.parametrize("client", BOTH)
def test_the_first_line_of_a_log_is_not_waited_for_for_ever(
    server: Server, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    """Until then there is no answer, so that a dead connection looks the same."""
    monkeypatch.setattr("elasticjob_client.connection._FIRST_LINE_SECONDS", 0.2)
    server.late = ("follow=true",)
    with Jobs() as jobs:
        found = Log(jobs.pods("mnist")[0], 0, None, None)
    with pytest.raises(NoServer, match="does not answer"):
        client(lambda jobs: jobs._lines(found), [], [])
