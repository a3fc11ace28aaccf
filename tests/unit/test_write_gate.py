"""No write begins once the client may not write any more, wherever the request was waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from aiohttp import web

from elasticjob_operator.observe.client import JSON_PATCH, MERGE_PATCH, Client
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.observe.errors import NotLeading
from tests.unit.test_observe_client import FakeCredentials

WRITES: dict[str, Callable[[Client], Awaitable[object]]] = {
    "create": lambda client: client.create("/pods", {"kind": "Pod"}),
    "patch": lambda client: client.patch("/pods/a", {}, MERGE_PATCH),
    "json patch": lambda client: client.patch("/pods/a", [], JSON_PATCH),
    "delete": lambda client: client.delete("/pods/a"),
}


class Gate:
    """Says yes so often, then no."""

    def __init__(self) -> None:
        self.left = 10**9
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        self.left -= 1
        return self.left >= 0


class Server:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.method)
        await request.read()
        return web.json_response({"kind": "Status"})


@asynccontextmanager
async def talking(gate: Gate) -> AsyncIterator[tuple[Client, Server]]:
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    credentials = FakeCredentials(f"http://127.0.0.1:{runner.addresses[0][1]}")
    client = Client(cast(Credentials, credentials), timeout=5.0, may_write=gate, unsent_seconds=1.5)
    try:
        yield client, server
    finally:
        await client.aclose()
        await runner.cleanup()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_write_of_one_that_may_is_sent(write: Callable[[Client], Awaitable[object]]) -> None:
    gate = Gate()
    async with talking(gate) as (client, server):
        await write(client)
        assert len(server.seen) == 1
        assert gate.asked == 2, "when it is made, and when it is handed over"


@pytest.mark.parametrize("connected", [False, True], ids=["new connection", "kept connection"])
@pytest.mark.parametrize("after", [0, 1], ids=["at once", "between request and connection"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_write_of_one_that_may_not_is_not(
    write: Callable[[Client], Awaitable[object]], after: int, connected: bool
) -> None:
    gate = Gate()
    async with talking(gate) as (client, server):
        if connected:
            await client.get("/pods")
        gate.left = after
        with pytest.raises(NotLeading, match="nothing was sent"):
            await write(client)
        assert server.seen == ["GET"] * connected
        assert client.write_outages.uncertain_since("ns") is None, "the API server is not to blame"
        await client.get("/pods")  # reading goes on
        gate.left = 2
        await write(client)
        assert len(server.seen) == connected + 2


class Sockets:
    """The module `socket` as one module sees it, with the sockets that it makes.

    Other threads of this process make sockets, too, as those that earlier tests have left.
    """

    def __init__(self) -> None:
        self.made: list[socket.socket] = []

    def __getattr__(self, name: str) -> object:
        return getattr(socket, name)

    def socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        self.made.append(socket.socket(family, kind, protocol))
        return self.made[-1]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
async def test_what_is_not_taken_in_time_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = Sockets()
    monkeypatch.setattr("elasticjob_operator.observe.client.socket", sockets)
    async with talking(Gate()) as (client, _server):
        await client.get("/pods")
        threading.Thread(target=lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()).start()
        kept = [one for one in sockets.made if one.fileno() >= 0]
        assert kept
        for one in kept:
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500
            # And an idle one, as a watch is, is asked after by the kernel.
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
