"""Blocking work in a thread that nothing else waits for.

The event loop's own pool (``asyncio.to_thread``) has a handful of threads and a queue without end, which
libraries use as well. What the election needs must not stand in that queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """What ``work`` returns or raises. Its thread is called ``name``, and ends with it."""
    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    finally:
        pool.shutdown(wait=False)
