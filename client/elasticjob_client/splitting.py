"""The lines of an answer: they end at "\\n" and nowhere else.

``Response.iter_lines`` also ends them at "\\r", "\\f" or U+2028, which stand within the lines of many a log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


class Splitter:
    """Puts lines together of what comes in parts, which may end in the middle of a letter."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def lines(self, part: bytes) -> list[str]:
        """Those that end with this part."""
        first, *others = part.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        whole, self._begun = [b"".join(self._begun), *others[:-1]], [others[-1]]
        return [_text(line) for line in whole]

    def rest(self) -> list[str]:
        """The last line, if nothing ended it."""
        rest, self._begun = b"".join(self._begun), []
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


def lines_of(response: httpx2.Response) -> Iterator[str]:
    """The lines of a response as they come."""
    splitter = Splitter()
    for part in response.iter_bytes():
        yield from splitter.lines(part)
    yield from splitter.rest()


async def async_lines_of(response: httpx2.Response) -> AsyncIterator[str]:
    """The lines of a response as they come, on asyncio."""
    splitter = Splitter()
    async for part in response.aiter_bytes():
        for line in splitter.lines(part):
            yield line
    for line in splitter.rest():
        yield line
