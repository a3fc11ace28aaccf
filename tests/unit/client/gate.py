"""What stands between a client and its server in tests: it can break all connections, and take no more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.unit.client.server import Server, kubeconfig

_RESET = struct.pack("ii", 1, 0)


class Gate:
    """In front of a server, whose kubeconfig leads to it. ``close`` and ``open`` it from any thread."""

    def __init__(self, server: Server) -> None:
        self._behind = server.http.server_port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = 0
        self.open()
        server.kubeconfig.write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{self.port}")))

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    def open(self) -> None:
        """Let requests through, at the same port as before."""
        self._do(self._listen())

    def close(self) -> None:
        """Refuse connections, and reset those that there are."""
        self._do(self._refuse())

    def reset(self) -> None:
        """Reset the connections that there are; new ones are let through."""
        self._do(self._break())

    def end(self) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        assert self._server
        self._server.close()
        await self._break()

    async def _break(self) -> None:
        for writer in self._open:
            with contextlib.suppress(OSError):  # it is closed already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
        self._open.clear()
        await asyncio.sleep(0.05)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        self._open |= {writer, back}
        await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await source.read(65536):
            to.write(part)
            await to.drain()
    with contextlib.suppress(OSError):
        to.close()


@contextmanager
def gated(server: Server) -> Iterator[Gate]:
    gate = Gate(server)
    try:
        yield gate
    finally:
        gate.end()
