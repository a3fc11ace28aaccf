"""Lists in pages: each page is read, reduced and released before the next one is requested.

A list of 5,000 pods has 30 MB. Read at once, it blocks the event loop for a second and takes 200 MB
meanwhile. The pages of one list show one state of the cluster: they continue at the version of the first
page. If the API server no longer has that version (410), the list starts again, so that its result never
mixes two versions.

How large the objects are is for tenants to say, and a busy API server may need seconds for a megabyte. A
page that is too large, or does not come in time, is asked for again with a fifth of the objects, down to one;
after small pages that came quickly there are more again. (A list that began again whenever a page was late
never ended.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import MOST_OF_A_PAGE, Api
from elasticjob_operator.observe.errors import Gone, PageTooLarge, TookTooLong
from elasticjob_operator.observe.fields import version_of

PAGE = 250
_AT_ONCE = 50
"""How many objects are taken before others have their turn in the event loop."""
_BEGINNINGS = 3
_QUICK_SECONDS = 1.0
"""After a page that took longer, pages grow no further."""

Key = tuple[str, str]
"""(namespace, name)."""


async def read_list(
    api: Api,
    path: str,
    take: Callable[[Json], None],
    query: Mapping[str, str] | None = None,
    page: int = PAGE,
) -> tuple[set[Key], int]:
    """Hand over each object of a list; return which there are, and the list's version. An object may be
    handed over more than once. Raises ApiError."""
    for beginning in range(_BEGINNINGS):
        try:
            return await _read_list(api, path, take, dict(query or {}), page)
        except Gone:
            if beginning == _BEGINNINGS - 1:
                raise
    raise AssertionError


async def _read_list(
    api: Api, path: str, take: Callable[[Json], None], query: dict[str, str], most: int
) -> tuple[set[Key], int]:
    present: set[Key] = set()
    limit = most
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            page = await api.get(path, {**query, "limit": str(limit)})
        except (PageTooLarge, TookTooLong):
            if limit == 1:
                raise
            limit = max(1, limit // 5)
            continue
        quick = loop.time() - began < _QUICK_SECONDS
        items = page.get("items") or ()
        for number, raw in enumerate(items):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            meta = raw["metadata"]
            present.add((str(meta.get("namespace", "")), str(meta["name"])))
            take(raw)
        token = page["metadata"].get("continue")
        if not token:
            return present, version_of(page["metadata"])
        query["continue"] = token
        if quick and getattr(items, "size", 0) < MOST_OF_A_PAGE // 4:
            limit = min(most, 2 * limit)
