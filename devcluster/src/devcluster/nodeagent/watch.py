"""The pods bound to our nodes, kept up to date by one list and watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from devcluster.nodeagent.api import UNREACHABLE, Api, ApiError, Object

_logger = logging.getLogger(__name__)

# An empty nodeName is the only thing that the server can filter by here: a set of names is no field selector.
_PATH = "/api/v1/pods?fieldSelector=spec.nodeName!%3D"
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0


class PodWatch:
    """Calls ``on_change`` with each pod of ``nodes`` that is new, changed, or (second argument) gone."""

    def __init__(self, api: Api, nodes: Collection[str], on_change: Callable[[Object, bool], None]) -> None:
        self._api = api
        self._nodes = nodes
        self._on_change = on_change
        self.pods: dict[str, Object] = {}
        """By uid, as seen last."""

    async def run(self) -> None:
        """Follow the API server for ever, whether it is there or not."""
        retry = _FIRST_RETRY_SECONDS
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                async for event in self._api.watch(_PATH, version):
                    retry = _FIRST_RETRY_SECONDS
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._see(event["object"], gone=event["type"] == "DELETED")
            except ApiError as error:
                _logger.info("pods: %s; listing again", error)
                version = None
            except UNREACHABLE as error:
                _logger.info("pods: %r", error)
            else:
                continue  # the server ends a watch after its time
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LAST_RETRY_SECONDS)

    async def _list(self) -> str:
        answer = await self._api.get(_PATH)
        present = {pod["metadata"]["uid"] for pod in answer["items"]}
        for uid in [uid for uid in self.pods if uid not in present]:
            self._see(self.pods[uid], gone=True)
        for pod in answer["items"]:
            self._see(pod, gone=False)
        return str(answer["metadata"]["resourceVersion"])

    def _see(self, pod: Object, gone: bool) -> None:
        if pod["spec"].get("nodeName") not in self._nodes:
            return
        uid = pod["metadata"]["uid"]
        if gone:
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
        self._on_change(pod, gone)
