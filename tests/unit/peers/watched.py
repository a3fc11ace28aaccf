"""The run's pods as a watch brings them, played."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob.api.errors import ApiError
from elasticjob.api.listing import Change

Item = list[Mapping[str, Any]] | Change | ApiError
LABEL = "elasticjob.dev/run-name"
FORCED: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}


class Watched:
    """``HttpListApi``, as far as pods are watched; ``brings`` is what the watch brings next. ``asked``: which
    pods were watched alone."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._items: queue.Queue[Item | None] = queue.Queue()

    def brings(self, *items: Item) -> None:
        for item in items:
            self._items.put(item)

    def follow_pods(self, label: str, value: str) -> Iterator[Item]:
        assert (label, value) == (LABEL, "mnist")
        yield from self._follow()

    def follow_pod(self, name: str) -> Iterator[Item]:
        self.asked.append(name)
        yield from self._follow()

    def _follow(self) -> Iterator[Item]:
        while (item := self._items.get()) is not None:
            if isinstance(item, ApiError):
                raise item
            yield item

    def stop(self) -> None:
        self._items.put(None)
