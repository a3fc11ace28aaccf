"""The lines of a watch, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from unittest.mock import Mock

import aiohttp
import pytest

from elasticjob_operator.observe.watch_lines import watch_lines


class Wire:
    """What comes from the server; ``after`` so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self._ahead = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead)
        self.stream = aiohttp.StreamReader(Mock(_reading_paused=False), 1 << 16, loop=loop)

    async def after(self, seconds: float, text: bytes = b"") -> None:
        self._ahead += seconds
        for _ in range(5):
            await asyncio.sleep(0)  # what is due runs
        if text:
            self.stream.feed_data(text)


async def test_a_line_is_whole_in_however_many_pieces_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    async with aclosing(watch_lines(wire.stream, 60.0)) as batches:
        await wire.after(0, b"one\n\ntwo\nth")
        assert await anext(batches) == [b"one", b"two"]
        await wire.after(0, b"r")
        await wire.after(0, b"ee\n")
        assert await anext(batches) == [b"three"]
        wire.stream.feed_eof()
        assert [batch async for batch in batches] == []


async def test_silence_counts_from_the_last_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    async with aclosing(watch_lines(wire.stream, 60.0)) as batches:
        for text in (b"one", b"two", b"three"):
            next_batch = asyncio.ensure_future(anext(batches))
            await wire.after(40, text + b"\n")
            assert await next_batch == [text]
        next_batch = asyncio.ensure_future(anext(batches))
        await wire.after(59)
        assert not next_batch.done()
        await wire.after(2)
        with pytest.raises(aiohttp.ServerTimeoutError, match="nothing has come for 60 s"):
            await next_batch


async def test_what_came_while_the_process_was_paused_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    async with aclosing(watch_lines(wire.stream, 60.0)) as batches:
        await wire.after(0, b"one\n")
        await anext(batches)
        wire.stream.feed_data(b"two\n")
        await wire.after(100)
        assert await anext(batches) == [b"two"]
        next_batch = asyncio.ensure_future(anext(batches))
        await wire.after(61)
        with pytest.raises(aiohttp.ServerTimeoutError):
            await next_batch


async def test_nothing_is_left_of_a_watch_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    async with aclosing(watch_lines(wire.stream, 60.0)) as batches:
        await wire.after(0, b"one\n")
        await anext(batches)
    await wire.after(100)
    assert wire.stream.exception() is None
