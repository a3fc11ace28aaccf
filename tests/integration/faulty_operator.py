"""``python -m tests.integration.faulty_operator``: the operator with faults, each for as long as a file in
``FAULTS`` has its name, and with limits of seconds in place of minutes.

* ``blind``: the watches of pods bring nothing, and go on;
* ``blind-jobs``: so does that of jobs;
* ``hang``: a pass stops at the write of the status;
* ``block``: the event loop stands;
* ``list``: the list of jobs makes no sense.

The API server sends a bookmark once a minute; here something is heard five times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from elasticjob_operator import __main__
from elasticjob_operator.act.status_writer import StatusWriter
from elasticjob_operator.controller.job_source import JobSource
from elasticjob_operator.observe.client import Client, WatchBatch
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.settings import Settings

FAULTS = Path(os.environ["FAULTS"])
LIMIT = 2.0

_real_choose = __main__.choose
_real_watch = Client.watch
_real_watched = JobSource.watched
_real_list = JobSource.list_jobs
_real_status = StatusWriter.write
_real_pulse = ClusterCache.pulse


def _on(fault: str) -> bool:
    return (FAULTS / fault).exists()


async def _while_on(fault: str) -> None:
    while _on(fault):
        await asyncio.sleep(0.05)


def _choose(arguments: argparse.Namespace) -> Settings:
    return replace(_real_choose(arguments), max_silence=LIMIT, max_pass=LIMIT, relist_seconds=0.5)


async def _watch(self: Client, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
    batches = _real_watch(self, path, params)
    try:
        yield await anext(batches)
        coming = asyncio.ensure_future(anext(batches))
        try:
            while True:
                await asyncio.wait({coming}, timeout=0.2)
                if _on("blind") and path.endswith("/pods"):
                    await asyncio.sleep(0.05)
                elif coming.done():
                    yield coming.result()
                    coming = asyncio.ensure_future(anext(batches))
                else:
                    yield []
        except StopAsyncIteration:
            return
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
    finally:
        await batches.aclose()


def _watched(self: JobSource, raw: dict[str, Any]) -> None:
    if not _on("blind-jobs"):
        _real_watched(self, raw)


async def _list(self: JobSource, namespace: str) -> int:
    if _on("list"):
        raise KeyError("items")
    return await _real_list(self, namespace)


async def _status(self: StatusWriter, *given: Any) -> Any:
    await _while_on("hang")
    return await _real_status(self, *given)


async def _pulse(self: ClusterCache) -> None:
    async def block() -> None:
        while True:
            while _on("block"):
                time.sleep(0.05)
            await asyncio.sleep(0.05)

    blocking = asyncio.create_task(block())
    try:
        await _real_pulse(self)
    finally:
        blocking.cancel()


if __name__ == "__main__":
    __main__.choose = _choose  # type: ignore[assignment]
    Client.watch = _watch  # type: ignore[method-assign]
    JobSource.watched = _watched  # type: ignore[method-assign]
    JobSource.list_jobs = _list  # type: ignore[method-assign]
    StatusWriter.write = _status  # type: ignore[method-assign,assignment]
    ClusterCache.pulse = _pulse  # type: ignore[method-assign]
    __main__.main()
