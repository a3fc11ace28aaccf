"""The HTTP server of the probes and of the metrics, which every pod of the cluster may reach.

It shares an event loop and the process's open files with what leads. So no request may take much:

* A connection has one request, and ends after ``SECONDS``, also if the client goes on.
* There are at most ``MOST`` connections. For one more, the oldest of the address that has the most ends: the
  kubelet, which has one at a time, is answered unless a pod with the host's address asks, too.
* An address gets ``PER_SECOND`` connections a second. Others are closed before a byte is read.
* No body is read, and nothing is unpacked.

The operator's own pod is not limited: a client there has rights in it (``kubectl port-forward``).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MOST = 64
PER_SECOND, AT_ONCE = 20.0, 50.0
SECONDS = 10.0
_IDLE_SECONDS = 5
_REMEMBERED = 4_096
"""Addresses, so that who comes from many takes no memory."""
_CLOSING_SECONDS = 1.0

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


_LOG = logging.getLogger(__name__)
_BY_CLIENTS = HttpProcessingError, ConnectionResetError
_LOG.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _BY_CLIENTS)))
"""aiohttp logs a traceback for each malformed request, and for each client that has gone before it was
answered. Every pod may do that."""


def from_inside(remote: str) -> bool:
    """Whether this address of a client is of the operator's own pod, which only users with rights enter."""
    try:
        address = ipaddress.ip_address(remote)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@dataclass
class _Visits:
    """Tokens of one address."""

    left: float
    at: float


class Doorkeeper:
    """Decides which connections are accepted. No I/O; ``monotonic`` gives seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._inside: dict[Any, str] = {}
        """Addresses by visitor, the oldest first."""
        self._visits: dict[str, _Visits] = {}

    def __len__(self) -> int:
        return len(self._inside)

    def may_enter(self, address: str) -> bool:
        """Whether one more from there may come in now."""
        if from_inside(address):
            return True
        now = self._monotonic()
        visits = self._visits.pop(address, None) or _Visits(AT_ONCE, now)
        visits.left = min(AT_ONCE, visits.left + PER_SECOND * (now - visits.at))
        visits.at = now
        self._visits[address] = visits
        if len(self._visits) > _REMEMBERED:
            del self._visits[next(iter(self._visits))]  # has not come for the longest time
        if visits.left < 1.0:
            return False
        visits.left -= 1.0
        return True

    def entered(self, visitor: Any, address: str) -> Any | None:
        """This one has come in. Returns who has to leave for it."""
        self._inside[visitor] = address
        if len(self._inside) <= MOST:
            return None
        most = Counter(self._inside.values()).most_common(1)[0][0]
        oldest = next(one for one, where in self._inside.items() if where == most)
        self.left(oldest)
        return oldest

    def left(self, visitor: Any) -> None:
        """This one has gone, or is about to."""
        self._inside.pop(visitor, None)


class _Door(asyncio.Protocol):
    """A connection of which nothing is known yet."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.knocked(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        _break_cycle(self._transport)


class _Server(web.Server):
    """aiohttp's server, behind a doorkeeper."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__(
            self._answer,
            access_log=None,
            logger=_LOG,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=0.0,
            auto_decompress=False,
        )
        self._answers = dict(answers)
        self._ends: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self.doorkeeper = Doorkeeper()

    def __call__(self) -> Any:
        return _Door(self)

    def knocked(self, transport: asyncio.Transport) -> None:
        """Let the connection in, or close it."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if not self.doorkeeper.may_enter(address):
            transport.abort()
            return
        leaves = self.doorkeeper.entered(transport, address)
        if leaves is not None:
            leaves.abort()
        self._ends[transport] = asyncio.get_running_loop().call_later(SECONDS, transport.abort)
        handler = super().__call__()
        transport.set_protocol(handler)
        handler.connection_made(transport)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        transport = self._connections.get(handler)
        super().connection_lost(handler, exc)
        self.doorkeeper.left(transport)
        if isinstance(transport, asyncio.Transport):
            self._ends.pop(transport).cancel()
            _break_cycle(transport)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = self._answers.get(request.path)
        response: web.StreamResponse
        if answer is None:
            response = web.Response(status=404, text="not found\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, headers={"Allow": "GET, HEAD"}, text="only GET\n")
        else:
            response = await answer(request)
        response.force_close()
        return response


def _break_cycle(transport: asyncio.Transport) -> None:
    """Let the transport of a closed connection be freed at once. asyncio's holds a method of itself, and a
    frozen reference cycle stays for hours (``gc_tuning``). Strangers make hundreds a second."""
    vars(transport).pop("_read_ready_cb", None)


async def serve(answers: Mapping[str, Answer], host: str, port: int) -> web.BaseRunner:
    """Answer GETs of these paths from now on; ``cleanup`` of what is returned ends it."""
    runner = web.ServerRunner(_Server(answers), handle_signals=False, shutdown_timeout=_CLOSING_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
