"""A TCP proxy whose link can be cut, refused and reset, for one end and not for the others.

For a node that is cut off from the API server: give it the proxy's address, and break the proxy. It knows
nothing of TLS or HTTP and so breaks what a network breaks.

A cut loses nothing and closes nothing, like a partition between two kernels that go on retransmitting: no
byte, no FIN and no RST passes until `restore`, which delivers what was sent meanwhile. Only the handshake of
a new connection still succeeds, because the proxy's own kernel completes it; then nothing comes back.
For a partition that outlives its connections (a NAT that forgot them): `reset` before `restore`.
`strand` does the same to the present connections alone, as the loss of one server of several behind one
address does: new connections are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TypeVar

from devcluster.ports import PortClaims

T = TypeVar("T")

_CHUNK_BYTES = 1 << 16
# Chunks on the way of one direction: bounds memory while the link is cut.
_CHUNKS_IN_FLIGHT = 64
_COMMAND_TIMEOUT_SECONDS = 10.0
# SO_LINGER on, with no time: closing sends RST.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class TcpProxy:
    """A proxy from a listening address to `target`, running in a thread of its own.

    Its methods may be called from any thread and return when they are in force. A context manager; `close`
    ends it.
    """

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1", port: int | None = None) -> None:
        """Listen on `host`:`port`; without a port on a free one.

        Raises OSError if the address is taken.
        """
        self._claims = PortClaims()
        self.host = host
        self.port = self._claims.take(host) if port is None else port
        self._target = target
        self._passing = asyncio.Event()
        """Whether bytes pass, on connections made from now on."""
        self._passing.set()
        self._stranded: list[asyncio.Event] = []
        self._links: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        try:
            self._run(self._listen())
        except OSError:
            self.close()
            raise

    @property
    def server(self) -> str:
        """The proxy as an API server's URL."""
        return f"https://{self.host}:{self.port}"

    def cut(self) -> None:
        """Let nothing pass, in either direction, and close nothing, until `restore`."""
        self._run(self._cut())

    def strand(self) -> None:
        """Let nothing pass on the present connections, and close none; new ones pass."""
        self._run(self._strand())

    def reset(self) -> None:
        """End all present connections by RST at both ends; new ones are treated as before."""
        self._run(self._reset())

    def refuse(self) -> None:
        """Like a server that is gone: present connections are reset, new ones refused, until `restore`."""
        self._run(self._refuse())

    def restore(self) -> None:
        """End `cut`, `strand` and `refuse`: held data is delivered, new connections are accepted."""
        self._run(self._restore())

    def close(self) -> None:
        """End the proxy and reset its connections. May be called twice."""
        if self._loop.is_closed():
            return
        self._run(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_COMMAND_TIMEOUT_SECONDS)
        self._loop.close()
        self._claims.release()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, command: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(command, self._loop).result(_COMMAND_TIMEOUT_SECONDS)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._serve, self.host, self.port, limit=_CHUNK_BYTES, backlog=512
            )

    async def _cut(self) -> None:
        self._passing.clear()

    async def _strand(self) -> None:
        self._passing.clear()
        self._stranded.append(self._passing)
        self._passing = asyncio.Event()
        self._passing.set()

    async def _restore(self) -> None:
        for passing in (*self._stranded, self._passing):
            passing.set()
        self._stranded.clear()
        await self._listen()

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._reset()

    async def _reset(self) -> None:
        links = list(self._links)
        for writer in list(self._writers):
            _abort(writer)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        self._writers.add(to_client)
        passing = self._passing
        try:
            await passing.wait()
            await self._connect(client, to_client, passing)
        except (OSError, asyncio.CancelledError):
            # Cancelled by reset; asyncio's own handler would log it as an error.
            _abort(to_client)
        finally:
            self._links.discard(link)
            self._writers.discard(to_client)

    async def _connect(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        server, to_server = await asyncio.open_connection(*self._target, limit=_CHUNK_BYTES)
        self._writers.add(to_server)
        try:
            there, back = self._pump(client, to_server, passing), self._pump(server, to_client, passing)
            await asyncio.gather(there, back)
            to_client.close()
            to_server.close()
        except OSError:
            # One end broke off: so does the other, once the link lets that pass.
            await passing.wait()
            raise
        finally:
            if not to_server.is_closing():
                _abort(to_server)
            self._writers.discard(to_server)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        chunks: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_IN_FLIGHT)
        deliver = asyncio.ensure_future(self._deliver(chunks, sink, passing))
        try:
            while not deliver.done():
                chunk = await source.read(_CHUNK_BYTES)
                await chunks.put(chunk)
                if not chunk:
                    break
            await deliver
        finally:
            deliver.cancel()

    async def _deliver(
        self, chunks: asyncio.Queue[bytes], sink: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        while True:
            chunk = await chunks.get()
            await passing.wait()
            if not chunk:
                sink.write_eof()
                return
            sink.write(chunk)
            await sink.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
