"""A client of the API server for an event loop that plays many: requests, watches, and bytes on the wire."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
from yarl import URL

CONNECT_SECONDS = 60.0
"""Thousands of TLS handshakes at one moment share the cores: a short limit would be what is measured."""
_KEEP_SECONDS = 3600.0
"""A participant renews its Lease on the connection that it has."""
_TCP_INFO_COUNTS = 120
"""Where Linux' struct tcp_info has the numbers of bytes acknowledged and received (4.2 or later)."""


class Refused(Exception):
    """The API server's answer was an error, or there was none (status 0)."""

    def __init__(self, text: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


class ApiClient:
    """One user's requests, by at most ``connections`` connections that no other client shares."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext,
        token: str,
        agent: str,
        connections: int,
        answer_seconds: float | None = None,
    ) -> None:
        self._server = server
        self._sockets: list[_CountedSocket] = []
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=tls, limit=connections, keepalive_timeout=_KEEP_SECONDS, socket_factory=self._socket
            ),
            headers={
                "accept": "application/json",
                "accept-encoding": "identity",
                "user-agent": agent,
                "authorization": f"Bearer {token}",
            },
            timeout=aiohttp.ClientTimeout(total=answer_seconds, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def request(
        self, method: str, path: str, body: object = None, kind: str = "", accept: str = "application/json"
    ) -> Any:
        """The object that is answered. Raises Refused."""
        data = json.dumps(body) if kind else None
        headers = {"accept": accept, "content-type": kind} if kind else {"accept": accept}
        with _refused():
            async with self._session.request(method, self._url(path), data=data, headers=headers) as response:
                await _check(response)
                return json.loads(await response.read())

    @contextlib.asynccontextmanager
    async def watch(self, path: str, silence: float | None = None) -> AsyncIterator[AsyncIterator[Any]]:
        """The events of a watch, once the API server has answered. Raises Refused, also after ``silence``
        seconds without an event."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        with _refused():
            async with self._session.get(self._url(path), timeout=timeout) as response:
                await _check(response)
                yield _events(response)

    def count(self) -> tuple[int, int]:
        """Bytes sent and received on the wire, TLS included, by all connections so far."""
        counts = [one.count() for one in self._sockets]
        return sum(sent for sent, _ in counts), sum(got for _, got in counts)

    async def aclose(self) -> None:
        """Hang up."""
        await self._session.close()

    def _url(self, path: str) -> URL:
        return URL(self._server + path, encoded=True)

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        self._sockets.append(_CountedSocket(*address[:3]))
        return self._sockets[-1]


class _CountedSocket(socket.socket):
    """A TCP socket that knows what went over it, also when it is closed."""

    _counted = (0, 0)

    def count(self) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            info = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            acked, got = struct.unpack_from("=QQ", info, _TCP_INFO_COUNTS)
            self._counted = (acked, got)
        return self._counted

    def close(self) -> None:
        self.count()
        super().close()


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Refused(f"no answer: {error!r}") from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = (await response.read())[:300].decode(errors="replace")
        after = float(response.headers.get("retry-after") or 0)
        raise Refused(f"{response.status}: {text}", response.status, after)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
