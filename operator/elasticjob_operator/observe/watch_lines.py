"""The lines of a watch as they come, until it has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp


async def watch_lines(stream: aiohttp.StreamReader, silence: float) -> AsyncGenerator[list[bytes], None]:
    """Complete lines, as many at a time as have arrived (StreamReader.readline has a limit of 64 KiB).

    Raises aiohttp.ServerTimeoutError when nothing has come for ``silence`` seconds. aiohttp's own limit makes
    a timer for each piece that comes, which is a tenth of what a watch costs; this one looks again when its
    time is up.
    """
    loop = asyncio.get_running_loop()
    heard_at, taken = loop.time(), 0
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        left = heard_at + silence - loop.time()
        if left > 0:
            timer = loop.call_later(left, look)
        elif stream.total_bytes > taken:  # this process was paused, and reads it next
            timer = loop.call_later(silence, look)
        else:
            stream.set_exception(aiohttp.ServerTimeoutError(f"nothing has come for {silence:g} s"))

    timer = loop.call_later(silence, look)
    try:
        rest: list[bytes] = []
        async for chunk in stream.iter_any():
            heard_at, taken = loop.time(), taken + len(chunk)
            head, newline, tail = chunk.rpartition(b"\n")
            if not newline:
                rest.append(chunk)
                continue
            rest.append(head)
            lines = b"".join(rest).split(b"\n")
            rest = [tail] if tail else []
            batch = [line for line in lines if line]
            if batch:
                yield batch
    finally:
        timer.cancel()
