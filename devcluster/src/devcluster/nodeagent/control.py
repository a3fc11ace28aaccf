"""The control socket: faults on demand. One JSON object per line, answered by one JSON object.

{"do": "kill_node", "with": {"name": "node-a"}}  -> {"result": null}  or  {"error": "no node 'node-x'"}
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

Handler = Callable[..., Awaitable[Any]]

_LINE_LIMIT = 1 << 20


class ControlError(Exception):
    """The request makes no sense: no such node or pod, or a fault that is impossible here."""


class ControlServer:
    """Serves named handlers on a Unix socket."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._server: asyncio.Server | None = None

    async def start(self, path: Path) -> None:
        """Listen; the file of a former agent is replaced."""
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(path), limit=_LINE_LIMIT)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            handler = self._handlers[request["do"]]
            return {"result": await handler(**request.get("with", {}))}
        except ControlError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"bad request {line!r}: {error!r}"}
