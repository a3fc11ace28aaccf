"""Follows one object through the API server's watch, also across the server's death, freeze and restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import urllib3

from devcluster.access import ClusterAccess

_SILENCE_SECONDS = 8.0
"""After which a watch is opened again: a frozen server closes nothing."""
_RETRY_SECONDS = 0.3


@dataclass(frozen=True)
class Sight:
    """A version of the object. ``gap``: versions before it may have been missed."""

    body: dict[str, Any]
    deleted: bool
    gap: bool


class _Refused(Exception):
    """The server answered, and not well."""


class Watcher:
    """A thread that calls ``on_sight`` for each version of an object, in order.

    It continues at the version that it saw last; only when the server no longer knows that (410) does it read
    the object anew and say that there is a gap.
    """

    def __init__(
        self, cluster: ClusterAccess, collection: str, name: str, on_sight: Callable[[Sight], None]
    ) -> None:
        """``collection`` is the path of all objects of that kind in the namespace."""
        self._url = f"{cluster.server}{collection}"
        self._selector = f"fieldSelector=metadata.name%3D{name}"
        self._headers = {"Authorization": f"Bearer {cluster.admin_token}", "User-Agent": "chaos"}
        self._pool = urllib3.PoolManager(ca_certs=str(cluster.ca_file), retries=False)
        self._on_sight = on_sight
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ``on_sight`` raised, which has ended the watch."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the watch; returns when ``on_sight`` will not be called any more."""
        self._ended.set()
        self._thread.join(_SILENCE_SECONDS + 5)

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - for the thread that asks
            self._error = error

    def _follow(self) -> None:
        version = ""
        while not self._ended.is_set():
            try:
                version = version or self._read()
                for event in self._watch(version):
                    if event["type"] == "ERROR":
                        version = ""
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._on_sight(Sight(event["object"], event["type"] == "DELETED", gap=False))
            except (urllib3.exceptions.HTTPError, OSError, _Refused):
                self._ended.wait(_RETRY_SECONDS)

    def _read(self) -> str:
        answer = self._pool.request(
            "GET", f"{self._url}?{self._selector}", headers=self._headers, timeout=_SILENCE_SECONDS
        )
        if answer.status != 200:
            raise _Refused(f"the server answered {answer.status}")
        found = answer.json()
        for body in found["items"]:
            self._on_sight(Sight(body, deleted=False, gap=True))
        version: str = found["metadata"]["resourceVersion"]
        return version

    def _watch(self, version: str) -> Iterator[dict[str, Any]]:
        # The server ends the watch itself before silence would look like its death.
        answer = self._pool.request(
            "GET",
            f"{self._url}?watch=true&allowWatchBookmarks=true&timeoutSeconds=5"
            f"&resourceVersion={version}&{self._selector}",
            headers=self._headers,
            timeout=urllib3.Timeout(connect=2.0, read=_SILENCE_SECONDS),
            preload_content=False,
        )
        try:
            if answer.status == 410:
                yield {"type": "ERROR", "object": {}}
                return
            if answer.status != 200:
                raise _Refused(f"the server answered {answer.status}")
            rest = b""
            for chunk in answer.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
                if self._ended.is_set():
                    return
        finally:
            answer.close()
