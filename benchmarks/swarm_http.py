"""HTTP/1.1 over TLS for an event loop that holds thousands of connections, each used for little.

A general client spends a millisecond of Python on a request, and asyncio's TLS a quarter of a megabyte on a
connection; with thousands of participants in one process that is what would be measured. Here OpenSSL reads
and writes the socket itself, and of HTTP there is as much as the API server uses: a status, headers, and a
body with a length or in chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

_READ_BYTES = 65_536
_TCP_INFO_BYTES = (120, 136)
"""Where Linux' struct tcp_info has the numbers of bytes acknowledged and received (4.2 or later)."""


class Lost(Exception):
    """No connection, or none any more."""


@dataclass(frozen=True)
class Answer:
    """What a request was answered with; ``body`` is empty for one that is streamed."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class Wire:
    """One connection, made when it is needed and again when it is lost; one request at a time.

    ``head`` are the lines that stand in each request.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, head: str) -> None:
        self._where = (host, port)
        self._tls = tls
        self._head = f"host: {host}:{port}\r\n{head}"
        self._socket: ssl.SSLSocket | None = None
        self._received = b""
        self._news: asyncio.Future[None] | None = None
        self._lost: str = ""
        self._counted = (0, 0)
        self._turn = asyncio.Lock()

    def count(self) -> tuple[int, int]:
        """Bytes sent and received on the wire, TLS included, by all connections so far."""
        sent, received = self._counted
        if self._socket is not None:
            with contextlib.suppress(OSError):
                info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                acked, got = struct.unpack_from("=QQ", info, _TCP_INFO_BYTES[0])
                return sent + acked, received + got
        return sent, received

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._counted = self.count()
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    async def request(
        self, method: str, path: str, body: bytes = b"", kind: str = "", timeout: float = 30.0
    ) -> Answer:
        """Ask, and read the whole answer. Raises Lost."""
        try:
            async with self._turn, asyncio.timeout(timeout):
                answer = await self._ask(method, path, body, kind)
                parts = [part async for part in self._body(answer)]
        except TimeoutError:
            self.close()
            raise Lost(f"no answer within {timeout:g} s") from None
        except BaseException:
            self.close()  # in the middle of an answer nothing else can be asked
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return Answer(answer.status, answer.headers, b"".join(parts))

    async def stream(self, path: str, silence: float) -> AsyncIterator[Answer | bytes]:
        """Ask, and yield the answer's head, then its body as it comes. Raises Lost, also after ``silence``
        seconds."""
        try:
            answer = await self._ask("GET", path, b"", "")
            yield answer
            async for part in self._body(answer, silence):
                yield part
        finally:
            self.close()

    async def _ask(self, method: str, path: str, body: bytes, kind: str) -> Answer:
        if self._socket is None:
            await self._connect()
        said = f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n" if kind else ""
        await self._send(f"{method} {path} HTTP/1.1\r\n{self._head}{said}\r\n".encode() + body)
        head = await self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Answer(int(first.split(" ", 2)[1]), {name.lower(): value.strip() for name, _, value in pairs})

    async def _body(self, answer: Answer, silence: float | None = None) -> AsyncIterator[bytes]:
        if answer.headers.get("transfer-encoding") != "chunked":
            yield await self._exactly(int(answer.headers.get("content-length", "0")))
            return
        while length := int(await self._until(b"\r\n", silence), 16):
            yield await self._exactly(length)
            await self._exactly(2)
        await self._until(b"\r\n")

    # -- bytes ---------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        plain = socket.socket()
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received, self._lost = b"", ""
        try:
            await loop.sock_connect(plain, self._where)
            made = self._tls.wrap_socket(plain, server_hostname=self._where[0], do_handshake_on_connect=False)
        except OSError as error:
            plain.close()
            raise Lost(str(error)) from None
        try:
            while True:
                try:
                    made.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await _ready(loop.add_reader, loop.remove_reader, made.fileno())
                except ssl.SSLWantWriteError:
                    await _ready(loop.add_writer, loop.remove_writer, made.fileno())
        except OSError as error:
            made.close()
            raise Lost(str(error)) from None
        except BaseException:
            made.close()
            raise
        self._socket = made
        loop.add_reader(made.fileno(), self._readable)

    async def _send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data:
            if self._socket is None or self._lost:
                raise Lost(self._lost or "closed")
            try:
                data = data[self._socket.send(data) :]
            except ssl.SSLWantWriteError:
                await _ready(loop.add_writer, loop.remove_writer, self._socket.fileno())
            except OSError as error:
                raise Lost(str(error)) from None

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            while data := self._socket.recv(_READ_BYTES):  # a TLS record at a time
                self._received += data
            self._lost = "the server has hung up"
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self._lost = str(error)
        if self._lost:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _more(self, silence: float | None = None) -> None:
        if self._lost:
            raise Lost(self._lost)
        self._news = asyncio.get_running_loop().create_future()
        if silence is None:
            await self._news
            return
        try:
            async with asyncio.timeout(silence):
                await self._news
        except TimeoutError:
            raise Lost(f"nothing for {silence:g} s") from None

    async def _until(self, end: bytes, silence: float | None = None) -> bytes:
        while (at := self._received.find(end)) < 0:
            await self._more(silence)
        found = self._received[:at]
        self._received = self._received[at + len(end) :]
        return found

    async def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            await self._more()
        found, self._received = self._received[:count], self._received[count:]
        return found


async def _ready(
    add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], object], descriptor: int
) -> None:
    ready = asyncio.get_running_loop().create_future()

    def now() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, now)
    try:
        await ready
    finally:
        remove(descriptor)
