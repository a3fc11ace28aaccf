"""Reads what the API server answers: one object, a page of a list, an event of a watch.

Of an object's metadata only what the operator uses is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import aiohttp
import msgspec

from elasticjob_operator.observe.errors import ApiError, PageTooLarge, error_of

Json = dict[str, Any]
"""A JSON object at the edge; what is behind the edge has types of its own."""


class _Metadata(TypedDict, total=False):
    """What is read of an object's metadata. Its managed fields, half of a Lease, are left out."""

    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    generation: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    deletionGracePeriodSeconds: Any
    labels: Any
    annotations: Any
    ownerReferences: Any
    finalizers: Any


class _Event(msgspec.Struct):
    type: str
    object: dict[str, msgspec.Raw]


_EVENT = msgspec.json.Decoder(_Event)
_ITEM = msgspec.json.Decoder(dict[str, msgspec.Raw])
_METADATA = msgspec.json.Decoder(_Metadata)
_PART: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _reduced(item: Mapping[str, msgspec.Raw]) -> Json:
    """The object, with what is read of its metadata. Raises ValueError."""
    return {key: (_METADATA if key == "metadata" else _PART).decode(part) for key, part in item.items()}


def event_of(name: str, line: bytes) -> tuple[str, Json]:
    event = _EVENT.decode(line)
    kind, item = event.type, _reduced(event.object)
    if kind == "ERROR":
        gone = item.get("reason") in ("Expired", "Gone")
        raise error_of(name, 410 if gone else int(item.get("code") or 500), {}, json.dumps(item).encode())
    return kind, item


async def body_of(name: str, response: aiohttp.ClientResponse, most: int | None) -> bytes:
    """All of it. Raises PageTooLarge."""
    if most is None:
        return await response.read()
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            response.close()
            raise PageTooLarge(name, most)
    return b"".join(parts)


def object_of(name: str, answer: bytes) -> Json:
    try:
        parsed = json.loads(answer)
    except ValueError as error:
        raise ApiError(name, 0, "NotJSON", str(error)) from error
    if not isinstance(parsed, dict):
        raise ApiError(name, 0, "NotAnObject", type(parsed).__name__)
    return parsed


class _Page(msgspec.Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None = None


class _Items:
    """The objects of a page, each read when it is its turn. Read together, 250 pods are 60,000 Python objects
    at once, through which the garbage collector goes again and again. ``size``: bytes of the page."""

    def __init__(self, items: Sequence[msgspec.Raw], size: int) -> None:
        self._items = items
        self.size = size

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Json]:
        for item in self._items:
            yield _reduced(_ITEM.decode(item))


def page_of(name: str, answer: bytes) -> Json:
    try:
        page = msgspec.json.decode(answer, type=_Page)
    except msgspec.ValidationError as error:
        raise ApiError(name, 0, "NotAList", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(name, 0, "NotJSON", str(error)) from error
    return {"metadata": page.metadata, "items": _Items(page.items or (), len(answer))}
