"""What any pod may do at the ports of the probes and metrics, and what that must not touch."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from elasticjob_operator import probe_server
from elasticjob_operator.health import Health
from elasticjob_operator.metrics.families import Sample
from elasticjob_operator.metrics.meter import Meter
from elasticjob_operator.probe_server import AT_ONCE, MOST, PER_SECOND, Answer, Doorkeeper
from elasticjob_operator.scrape import Scrape
from elasticjob_operator.settings import MetricsSettings
from elasticjob_operator.shared_answer import SharedAnswer
from tests.unit.test_observe_client import FakeCredentials, served

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
DEADLINE = 30.0
"""Against hanging: what is waited for takes milliseconds."""


class SlowMeter(Meter):
    """Each rendering waits until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.renderings = 0

    def text(self, seen: Callable[[], Iterable[Sample]]) -> bytes:
        self.renderings += 1
        self.begun.release()
        assert self.go.wait(DEADLINE)
        return super().text(seen)


class Stale(FakeCredentials):
    """A token that is due to be read again."""

    def stale(self) -> bool:
        return self.reloads == 0


async def hello(_: web.Request) -> web.StreamResponse:
    return web.json_response({})


async def test_who_asks_for_metrics_keeps_no_request_of_the_operator_waiting() -> None:
    """A token is read in a thread once a minute, and each request waits for it: the election's, too."""
    meter = SlowMeter()
    scrape = Scrape(meter, MetricsSettings())
    server = await scrape.serve("127.0.0.1", 0)
    host, port = server.addresses[0]
    async with asyncio.timeout(DEADLINE), ClientSession() as session, served(hello) as (client, credentials):
        asking = [asyncio.create_task(session.get(f"http://{host}:{port}/metrics")) for _ in range(40)]
        await asyncio.to_thread(meter.begun.acquire)
        credentials.__class__ = Stale
        await asyncio.wait_for(client.get("/x"), 5.0)
        assert credentials.reloads == 1
        meter.go.set()
        statuses = [(await one).status for one in asking]
    await server.cleanup()
    assert set(statuses) == {200, 503}
    assert meter.renderings == 1


async def test_a_full_pool_of_threads_keeps_no_request_waiting() -> None:
    """Whoever fills the event loop's own pool: name lookups, libraries, what is added one day."""
    free = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    blocked = loop.run_in_executor(None, free.wait, DEADLINE)
    async with served(hello) as (client, credentials):
        credentials.__class__ = Stale
        await asyncio.wait_for(client.get("/x"), 5.0)
    free.set()
    await blocked


@asynccontextmanager
async def probes(**more: Answer) -> AsyncIterator[tuple[str, int]]:
    """The server of the probes, of a process that is well."""
    server = await Health().serve("127.0.0.1", 0, {f"/{name}": answer for name, answer in more.items()})
    try:
        yield server.addresses[0]
    finally:
        await server.cleanup()


async def come(where: tuple[str, int], source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*where, local_addr=(source, 0))


async def get(where: tuple[str, int], path: str, source: str = "127.0.0.1") -> bytes:
    """The first line of the answer; nothing if the connection is closed without one."""
    reader, writer = await come(where, source)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line


async def test_connections_that_say_nothing_keep_the_kubelet_out_of_nothing() -> None:
    """Each would hold a file and a task for an hour, and with the last file the election is over."""
    async with asyncio.timeout(DEADLINE), probes() as where:
        silent = [await come(where, f"127.0.1.{n % 4}") for n in range(3 * MOST)]
        assert (await get(where, "/livez", "127.0.2.1")).startswith(b"HTTP/1.1 200")
        ended = [asyncio.create_task(ends(reader)) for reader, _ in silent]
        while sum(one.done() for one in ended) < 2 * MOST:
            await asyncio.sleep(0.01)
        for one in ended:
            one.cancel()
        for _, writer in silent:
            writer.close()


async def ends(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def test_a_connection_has_one_request() -> None:
    """A thousand in one packet would have the event loop to themselves."""
    calls = 0

    async def count(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return web.Response(text="x")

    async with asyncio.timeout(DEADLINE), probes(count=count) as where:
        reader, writer = await come(where, "127.0.0.1")
        writer.write(b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        writer.close()
    assert calls == 1


@pytest.mark.parametrize("said", [b"", LIVEZ[:-2], LIVEZ * 100])
@pytest.mark.parametrize("let_in", [True, False])
async def test_nothing_is_left_of_a_connection_for_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, said: bytes, let_in: bool
) -> None:
    """What is frozen when a connection ends would stay for hours: 700 MB after 290,000 connections."""
    monkeypatch.setattr(Doorkeeper, "may_enter", lambda *_: let_in)
    monkeypatch.setattr(probe_server, "SECONDS", 0.2)

    def visit(where: tuple[str, int]) -> None:
        with contextlib.suppress(ConnectionError), socket.create_connection(where, DEADLINE) as one:
            one.sendall(said)
            while one.recv(65536):
                pass

    async with probes() as where, asyncio.timeout(DEADLINE):
        await asyncio.to_thread(visit, where)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await asyncio.to_thread(visit, where)
            while any(isinstance(one, asyncio.Transport) and one.is_closing() for one in gc.get_objects()):
                await asyncio.sleep(0.05)
        finally:
            gc.enable()


async def test_what_is_no_request_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    def visit(where: tuple[str, int], said: bytes) -> bytes:
        with socket.create_connection(where, DEADLINE) as one:
            one.sendall(said)
            return one.recv(65536)

    async def fails(_: web.BaseRequest) -> web.StreamResponse:
        raise KeyError("a mistake of ours")

    async with probes(fails=fails) as where, asyncio.timeout(DEADLINE):
        for said in (b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
            assert b" 400 " in await asyncio.to_thread(visit, where, said)
        assert not caplog.records
        assert b" 500 " in await asyncio.to_thread(visit, where, LIVEZ.replace(b"livez", b"fails"))
        assert "a mistake of ours" in caplog.text


async def test_who_leaves_before_the_answer_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    asked, gone, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(request: web.BaseRequest) -> web.StreamResponse:
        asked.set()
        await gone.wait()
        try:
            while True:  # until the transport knows
                await asyncio.sleep(0.01)
                response = web.Response(text="too late")
                await response.prepare(request)
                await response.write_eof()
        finally:
            ended.set()

    async with probes(late=late) as where, asyncio.timeout(DEADLINE):
        _, writer = await come(where, "127.0.0.1")
        writer.write(LIVEZ.replace(b"livez", b"late"))
        await asked.wait()
        writer.close()
        gone.set()
        await ended.wait()
        await asyncio.sleep(0)
    assert not caplog.records


async def test_who_does_not_take_the_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "SECONDS", 0.5)
    sent = asyncio.Event()

    async def large(request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(body=bytes(64 * 2**20))
        try:
            await response.prepare(request)
            await response.write_eof()
        finally:
            sent.set()
        return response

    async with asyncio.timeout(DEADLINE), probes(large=large) as where:
        _, writer = await come(where, "127.0.0.1")
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await sent.wait()
        writer.close()


async def test_what_the_server_does_not_have() -> None:
    async with asyncio.timeout(DEADLINE), probes() as where:
        assert b"404" in await get(where, "/etc/passwd")
        reader, writer = await come(where, "127.0.0.1")
        writer.write(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"405" in await reader.readline()
        writer.close()


async def test_the_api_server_is_asked_once_for_all_who_ask_for_the_probe() -> None:
    asked, go = 0, asyncio.Event()

    async def judge() -> list[str]:
        nonlocal asked
        asked += 1
        await go.wait()
        return []

    shared = SharedAnswer(judge, 0.0)
    asking = [asyncio.create_task(shared.get()) for _ in range(20)]
    while not asked:
        await asyncio.sleep(0)
    asking.pop().cancel()
    go.set()
    assert await asyncio.gather(*asking) == [[]] * 19
    assert asked == 1


async def test_an_answer_is_kept_for_as_long_as_it_deserves() -> None:
    now, made = 100.0, 0

    async def make() -> int:
        nonlocal now, made
        now, made = now + 2.0, made + 1
        if made == 3:
            raise ValueError
        return made

    shared = SharedAnswer(make, 1.0, lambda: now)
    assert [await shared.get(), await shared.get()] == [1, 1]
    now += 7.9  # it took two seconds: so it is kept for eight
    assert await shared.get() == 1
    now += 0.1
    assert await shared.get() == 2
    now += 8.0
    with pytest.raises(ValueError):
        await shared.get()
    assert await shared.get() == 4, "an error is not kept"


def test_an_address_that_comes_too_often_is_not_let_in() -> None:
    now = 100.0
    door = Doorkeeper(lambda: now)
    assert [door.may_enter("10.0.0.1") for _ in range(100)].count(True) == AT_ONCE
    assert door.may_enter("10.0.0.2"), "others are"
    assert all(door.may_enter("127.0.0.1") for _ in range(100)), "so is the pod itself"
    now += 1.0
    assert [door.may_enter("10.0.0.1") for _ in range(100)].count(True) == PER_SECOND


def test_the_oldest_of_the_address_that_has_the_most_has_to_leave() -> None:
    door = Doorkeeper(lambda: 0.0)
    assert door.entered("kubelet", "10.0.0.9") is None
    assert [door.entered(n, "10.0.0.1") for n in range(MOST - 1)] == [None] * (MOST - 1)
    assert [door.entered(n, "10.0.0.2") for n in range(100, 103)] == [0, 1, 2]
    door.left("kubelet")
    assert door.entered("kubelet", "10.0.0.9") is None
    assert len(door) == MOST


async def test_only_who_has_the_token_reads_the_metrics(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    scrape = Scrape(Meter(), MetricsSettings(token_file=file))
    server = await scrape.serve("127.0.0.1", 0)
    host, port = server.addresses[0]

    async def status(authorization: str | None) -> int:
        headers = {} if authorization is None else {"Authorization": authorization}
        async with session.get(f"http://{host}:{port}/metrics", headers=headers) as answer:
            return answer.status

    async with asyncio.timeout(DEADLINE), ClientSession() as session:
        assert await status("Bearer 0123456789abcdef") == 200
        assert await status("bearer 0123456789abcdef") == 200
        for wrong in (None, "", "0123456789abcdef", "Basic 0123456789abcdef", "Bearer x", "Bearer \u00e4"):
            assert await status(wrong) == 401, wrong
        file.write_text("another-token-of-the-secret")
        assert await status("Bearer 0123456789abcdef") == 401
        assert await status("Bearer another-token-of-the-secret") == 200
        file.unlink()
        assert await status("Bearer another-token-of-the-secret") == 401
    await server.cleanup()
