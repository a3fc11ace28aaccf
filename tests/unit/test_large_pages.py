"""Lists of objects whose size tenants choose: pods and Leases of more than a megabyte each."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from elasticjob_operator.observe.client import MOST_OF_A_PAGE
from elasticjob_operator.observe.errors import PageTooLarge
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
