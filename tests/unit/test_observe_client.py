"""The Kubernetes client against a small HTTP server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import TraceConfig, web

from elasticjob_operator.metrics.meter import Meter
from elasticjob_operator.observe import client as client_module
from elasticjob_operator.observe import fair_limiter
from elasticjob_operator.observe.client import JSON_PATCH, MERGE_PATCH, Client
from elasticjob_operator.observe.credentials import Connection, Credentials
from elasticjob_operator.observe.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotLeading,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_of,
)
from elasticjob_operator.observe.fair_limiter import FairLimiter

LEADER_POLICY = Path(__file__).parents[2] / "charts/elasticjob/templates/leader-policy.yaml"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeCredentials:
    """Plain HTTP; each reload gives the next token."""

    def __init__(self, server: str) -> None:
        self.reloads = 0
        self.connection = self._connection(server)

    def stale(self) -> bool:
        return False

    def reload(self) -> None:
        self.reloads += 1
        self.connection = self._connection(self.connection.server)

    def ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _connection(self, server: str) -> Connection:
        return Connection(server, None, True, None, None, None, None, f"Bearer t{self.reloads}")


@asynccontextmanager
async def served(
    answer: Answer, timeout: float = 60.0, traces: Sequence[TraceConfig] = ()
) -> AsyncIterator[tuple[Client, FakeCredentials]]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    credentials = FakeCredentials(f"http://127.0.0.1:{runner.addresses[0][1]}")
    client = Client(cast(Credentials, credentials), timeout=timeout, traces=traces)
    try:
        yield client, credentials
    finally:
        await client.aclose()
        await runner.cleanup()


def failure(status: int, reason: str = "", **details: Any) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": status, "reason": reason, "message": "m", **details}
    ).encode()


@pytest.mark.parametrize(
    ("status", "reason", "json_patch", "kind"),
    [
        (401, "Unauthorized", False, Unauthorized),
        (403, "Forbidden", False, Forbidden),
        (404, "NotFound", False, NotFound),
        (409, "Conflict", False, Conflict),
        (409, "AlreadyExists", False, AlreadyExists),
        (410, "Expired", False, Gone),
        (422, "Invalid", False, Invalid),
        (422, "Invalid", True, Conflict),
        (429, "TooManyRequests", False, TooManyRequests),
        (500, "InternalError", False, Unavailable),
        (503, "", False, Unavailable),
        (418, "", False, ApiError),
    ],
)
def test_statuses(status: int, reason: str, json_patch: bool, kind: type[ApiError]) -> None:
    error = error_of("GET /x", status, {}, failure(status, reason), json_patch)
    assert type(error) is kind
    assert str(error).startswith(f"GET /x: {status} ")


def test_who_is_refused_for_not_leading_is_no_reason_to_complain_of_a_job() -> None:
    """An API server's copy of the Lease is some milliseconds old: a new leader may get this answer."""
    words = "does not lead; the leader is "
    assert words in LEADER_POLICY.read_text()
    body = json.dumps(
        {
            "reason": "Forbidden",
            "message": "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'x-leader-only' with binding "
            f"'x-leader-only' denied request: the operator in pod b {words}c_1",
        }
    )
    error = error_of("POST /pods", 403, {}, body.encode())
    assert type(error) is NotLeading
    assert "403" in str(error)
    others = body.replace("ValidatingAdmissionPolicy", "admission webhook")
    assert type(error_of("POST /pods", 403, {}, others.encode())) is Forbidden


def test_a_validation_error_of_a_json_patch_is_no_conflict() -> None:
    details = {"causes": [{"reason": "FieldValueInvalid", "field": "status.currentRound", "message": "x"}]}
    error = error_of("PATCH /x", 422, {}, failure(422, "Invalid", details=details), True)
    assert type(error) is Invalid


@pytest.mark.parametrize(("header", "seconds"), [("3", 3.0), ("999999", 30.0), ("soon", None), (None, None)])
def test_retry_after(header: str | None, seconds: float | None) -> None:
    error = error_of("GET /x", 429, {"Retry-After": header} if header else {}, b"slow down")
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == seconds
    assert error.message == "slow down"


# shows: a token has expired, and another is on disk
async def test_an_expired_token_is_read_again_once() -> None:
    seen = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.json_response({}, status=200 if seen[-1] == "Bearer t1" else 401)

    async with served(answer) as (client, credentials):
        assert await client.patch("/x", {}, MERGE_PATCH) == {}
        assert seen == ["Bearer t0", "Bearer t1"]
        assert credentials.reloads == 1


async def test_a_token_that_stays_wrong_is_an_error() -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=401)

    async with served(answer) as (client, credentials):
        with pytest.raises(Unauthorized):
            await client.get("/x")
        assert credentials.reloads == 1


async def test_the_objects_of_a_page_are_made_one_by_one() -> None:
    """Made together, those of 250 pods are 60,000 at once, and the collector sees them all in vain."""
    pod = {"metadata": {"name": "a", "labels": {}}, "spec": {"containers": [{"env": []} for _ in range(30)]}}
    listed = json.dumps({"kind": "PodList", "metadata": {"continue": "x"}, "items": [pod] * 250}).encode()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=listed)

    async with served(answer) as (client, _):
        page = await client.get("/pods", {"limit": "250"})
        assert (page["metadata"], len(page["items"])) == ({"continue": "x"}, 250)
        gc.disable()
        try:
            before, most = gc.get_count()[0], 0
            for item in page["items"]:
                assert item == pod
                most = max(most, gc.get_count()[0] - before)
        finally:
            gc.enable()
        assert most < 250


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"<html>", "NotJSON"),
        (b'{"metadata": {}, "items": [{]}', "NotJSON"),
        (b"[]", "NotAList"),
        (b'{"metadata": {}, "items": 7}', "NotAList"),
        (b'{"items": []}', "NotAList"),
    ],
)
async def test_a_page_that_is_none_says_so(said: bytes, reason: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=said)

    async with served(answer) as (client, _):
        with pytest.raises(ApiError, match=reason):
            await client.get("/pods", {"limit": "250"})


async def test_a_page_without_items_is_empty() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b'{"metadata": {}, "items": null}')

    async with served(answer) as (client, _):
        assert list((await client.get("/pods", {"limit": "250"}))["items"]) == []


async def test_a_dropped_connection_is_tried_once_more() -> None:
    tries = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        if tries == 1:
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"tries": tries})

    async with served(answer) as (client, _):
        assert await client.patch("/x", [], JSON_PATCH) == {"tries": 2}
        assert client.write_outages.uncertain_since("ns") is None


async def test_second_tries_and_waits_for_a_turn_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_limiter, "_QUICK_SECONDS", 60.0)  # each is quick, however busy this machine is
    meter, tries = Meter(), 0
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        if tries == 1:
            return web.json_response({}, status=401)
        if tries == 3:
            assert request.transport is not None
            request.transport.close()
        if tries > 4:
            await release.wait()
        return web.json_response({})

    def value(series: str) -> float:
        text = meter.text(lambda: ()).decode()
        return float(dict(line.rsplit(" ", 1) for line in text.splitlines())[series])

    path = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"
    async with served(answer, traces=[meter.trace()]) as (client, _):
        await client.patch(path, {}, MERGE_PATCH)
        assert value('elasticjob_api_retries_total{resource="leases",verb="patch"}') == 1
        await client.patch(f"{path}/status", {}, MERGE_PATCH)
        assert value('elasticjob_api_retries_total{resource="other",verb="patch"}') == 1
        before = value("elasticjob_throttled_seconds_total")
        assert before < 1.0, "there was a turn for each"

        client._records = FairLimiter(at_once=1, slow=1, slow_in_all=1)
        asked = asyncio.get_running_loop().time()
        many = [asyncio.create_task(client.patch(path, {}, MERGE_PATCH)) for _ in range(2)]
        async with asyncio.timeout(30):
            while client.waiting != 1 or tries < 5:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        release.set()
        await asyncio.gather(*many)
        waited = asyncio.get_running_loop().time() - asked
        assert 0.2 <= value("elasticjob_throttled_seconds_total") - before <= waited
        assert value('elasticjob_api_retries_total{resource="leases",verb="patch"}') == 1


async def test_no_answer_is_remembered() -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with served(answer, timeout=0.5) as (client, _):
        with pytest.raises(Unavailable, match="GET /x: no answer"):
            await client.get("/x")
        assert client.write_outages.uncertain_since("ns") is not None


async def test_a_refused_connection_is_unavailable() -> None:
    client = Client(cast(Credentials, FakeCredentials("http://127.0.0.1:1")))
    try:
        with pytest.raises(Unavailable):
            await client.get("/x")
        with pytest.raises(Unavailable):
            await anext(client.watch("/x", {}))
    finally:
        await client.aclose()


def streaming(*chunks: bytes, hang: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query["watch"] == "1"
        assert request.query["allowWatchBookmarks"] == "true"
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)
        if hang:
            await asyncio.Event().wait()
        return response

    return answer


def event(kind: str, **item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


async def collect(batches: AsyncIterator[Any], into: list[tuple[str, Any]]) -> None:
    async for batch in batches:
        into.extend(batch)


async def test_watch_lines_may_come_in_any_pieces() -> None:
    big = event("ADDED", name="a", text="x" * 200_000)
    stream = big + event("MODIFIED", name="b") + event("BOOKMARK", name="c")
    pieces = [stream[:100], stream[100:150_000], stream[150_000 : len(big) + 3], stream[len(big) + 3 :]]

    async with served(streaming(*pieces)) as (client, _):
        found: list[tuple[str, Any]] = []
        await collect(client.watch("/x", {}), found)
        assert [(kind, item["name"]) for kind, item in found] == [
            ("ADDED", "a"),
            ("MODIFIED", "b"),
            ("BOOKMARK", "c"),
        ]


async def test_events_before_an_error_event_are_delivered() -> None:
    stream = event("ADDED", name="a")
    error = event("ERROR", code=410, reason="Expired", message="too old")

    async with served(streaming(stream, error)) as (client, _):
        found: list[tuple[str, Any]] = []
        with pytest.raises(Gone, match="too old"):
            await collect(client.watch("/x", {}), found)
        assert [kind for kind, _item in found] == ["ADDED"]


async def test_a_watch_refused_with_410() -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=410, body=failure(410, "Expired"))

    async with served(answer) as (client, _):
        with pytest.raises(Gone):
            await anext(client.watch("/x", {}))


async def test_a_silent_watch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that the server ends: where there is no news, that is no sign of trouble."""
    monkeypatch.setattr(client_module, "_WATCH_SILENCE", 2.0)

    async with served(streaming(event("ADDED", name="a"), hang=True)) as (client, _):
        found: list[tuple[str, Any]] = []
        await collect(client.watch("/x", {}), found)
        assert [kind for kind, _item in found] == ["ADDED"]


@pytest.mark.parametrize("status", [None, 500], ids=["no answer", "half of an answer"])
async def test_a_watch_that_is_not_answered_is_given_up(
    monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    monkeypatch.setattr(client_module, "_WATCH_SILENCE", 0.2)
    monkeypatch.setattr(client_module, "_TIMEOUT", 0.2)

    async def answer(request: web.Request) -> web.StreamResponse:
        if status is not None:
            await web.StreamResponse(status=status).prepare(request)
        await asyncio.Event().wait()
        raise AssertionError

    async with served(answer) as (client, _):
        with pytest.raises(Unavailable, match="WATCH /x"):
            await anext(client.watch("/x", {}))


async def test_a_hundred_readings_open_no_hundred_connections_and_lists_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_limiter, "_QUICK_SECONDS", 60.0)  # each is quick, however busy this machine is
    inside: set[str] = set()
    most = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal most
        if "limit" not in request.query:
            inside.add(request.path)
            most = max(most, len(inside))
            await asyncio.sleep(0.01)
            inside.remove(request.path)
        return web.json_response({"metadata": {}})

    async with served(answer) as (client, _):
        one_by_one = [client.get(f"/api/v1/namespaces/ns/pods/p-{number}") for number in range(100)]
        reading = asyncio.gather(*one_by_one)
        await asyncio.sleep(0)
        await client.get("/api/v1/pods", {"limit": "1"})
        assert not reading.done()
        await reading
    assert 1 < most <= 32
