"""Lists of objects whose size tenants choose: pods and Leases of more than a megabyte each."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from elasticjob_operator.observe.client import MOST_OF_A_PAGE
from elasticjob_operator.observe.errors import PageTooLarge, TookTooLong
from elasticjob_operator.observe.lists import read_list
from tests.unit.test_observe_client import served

SMALL, LARGE = 600, 120


async def test_a_page_of_large_objects_is_asked_for_in_pieces() -> None:
    """First many small ones, then some of a mebibyte, then small ones again."""
    sizes = [10] * SMALL + [2**20] * LARGE + [10] * SMALL
    limits: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        limits.append(limit)
        response = web.StreamResponse()
        await response.prepare(request)
        more = str(start + limit) if start + limit < len(sizes) else ""
        head = {"resourceVersion": "7", "continue": more}
        await response.write(f'{{"metadata": {json.dumps(head)}, "items": ['.encode())
        for number in range(start, min(start + limit, len(sizes))):
            meta = {"name": f"x-{number}", "annotations": {"a": "x" * sizes[number]}}
            await response.write(("," * (number > start) + json.dumps({"metadata": meta})).encode())
        await response.write(b"]}")
        return response

    async with served(answer, timeout=30.0) as (client, _):
        with pytest.raises(PageTooLarge, match=f"more than {MOST_OF_A_PAGE} bytes"):
            await client.get("/large", {"limit": "100", "continue": str(SMALL)})
        limits.clear()
        present, version = await read_list(client, "/large", lambda _: None)
    assert (len(present), version) == (2 * SMALL + LARGE, 7)
    assert max(limits) == 250
    assert limits[-1] > 10, "after them, pages are large again"
    assert len(limits) < LARGE


async def test_an_object_alone_is_read_whatever_its_size() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        meta = {"name": "x", "annotations": {"a": "x" * (MOST_OF_A_PAGE + 1)}}
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": meta}]})

    async with served(answer, timeout=30.0) as (client, _):
        present, _ = await read_list(client, "/large", lambda _: None)
    assert present == {("", "x")}


async def test_a_page_that_does_not_come_in_time_is_asked_for_in_pieces() -> None:
    """As one of 250 Leases of 65 KB each: every list ended at such a page, and began again, for minutes."""
    count = 60

    async def answer(request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        names = [f"x-{number}" for number in range(start, min(start + limit, count))]
        await asyncio.sleep(0.02 * len(names))
        head = {"resourceVersion": "7", "continue": str(start + limit) if start + limit < count else ""}
        return web.json_response(
            {"metadata": head, "items": [{"metadata": {"name": name}} for name in names]}
        )

    async with served(answer, timeout=0.6) as (client, _):
        present, version = await read_list(client, "/slow", lambda _: None)
    assert (len(present), version) == (count, 7)


async def test_an_api_server_that_answers_nothing_is_asked_a_few_times() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["limit"])
        await asyncio.sleep(60)
        raise AssertionError

    async with served(answer, timeout=0.1) as (client, _):
        with pytest.raises(TookTooLong):
            await read_list(client, "/slow", lambda _: None)
    assert asked == ["250", "50", "10", "2", "1"]
