"""A small asyncio Kubernetes client on aiohttp: JSON dicts in and out, typed errors, watches.

Promises:

* There is one keep-alive pool, and a limited number of concurrent writes and of reads of one object. There
  is no other throttle: the operator is judged by its latency, and the API server's priority and fairness
  answers 429 when there is too much. Statuses and Leases do not wait for pods, namespaces do not wait for
  each other, and nothing waits for a slow webhook (``fair_limiter``). Lists and watches are few and do not
  wait.
* Every request has a time limit; a watch has a limit on its silence (bookmarks come every 60 s).
* A write whose kept-alive connection turned out to be closed is sent once more. Each of our writes is
  guarded by a resourceVersion, a UID or a name, so that a repetition does no harm.
* A connection may outlive the API server at its other end, because a proxy holds it. So a watch never gets
  a kept-alive connection, and when no response comes back by any of them, all of them are abandoned.
* After a 401 the client reads the credentials again and tries once more.
* With ``may_write``, no write starts once that returns False. It is asked when the request is made, and
  again when its bytes are handed to the kernel, after any wait for a turn or a connection (leadership,
  ``core``).

Why not the official client: its asyncio variant validates typed models (10 times the CPU), and its watch has
neither bookmarks nor a read time-out by default (kubernetes-client/python #1148, #1402).
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, NamedTuple, Protocol

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from elasticjob_operator.observe.answers import Json, body_of, event_of, object_of, page_of
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.observe.errors import (
    NotLeading,
    TookTooLong,
    Unavailable,
    error_of,
)
from elasticjob_operator.observe.fair_limiter import FairLimiter
from elasticjob_operator.observe.watch_lines import watch_lines
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.own_thread import in_own_thread

WatchBatch = list[tuple[str, Json]]
"""Events (type, object) that arrived together."""

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
DRY_RUN = {"dryRun": "All"}
"""Query of a write that is to change nothing."""
_STRICT = {"fieldValidation": "Strict"}
"""Query of a create. By default a server silently drops fields that it does not know, such as a template's
that are newer than the server, and the pods would lack them."""
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""Accept: answer with the object's metadata alone (a status may have 150 KB that we have just sent)."""

_USER_AGENT = "elasticjob-operator"
_TIMEOUT = 10.0
_CONNECT_TIMEOUT = 5.0
_WATCH_SILENCE = 75.0
_KEEP_ALIVE = 60.0
_DEAD_SECONDS = 10.0
"""A network path that fails silently ends its connections after this time. Otherwise a watch would bring
nothing for a minute, and members that rejoin meanwhile would not be seen."""
_KEEP_ALIVE_PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
_RECORDS_AT_ONCE, _OTHERS_AT_ONCE, _READINGS_AT_ONCE = 64, 32, 32
_SLOW_OF_A_NAMESPACE, _SLOW_IN_ALL = 16, 64
_RECORDS = ("/apis/elasticjob.dev/", "/apis/coordination.k8s.io/")
"""What rounds are made of: statuses and Leases."""
_TLS_BUFFER = 64 * 1024
"""Bytes that a connection has to read into. By asyncio's default they are 256 KiB, four fifths of what a
connection costs, and while a thousand jobs start there are hundreds. A TLS record has 16 KiB at most."""
MOST_OF_A_PAGE = 8 * 2**20
"""Bytes of a page of a list that are read, unless it is asked for one object alone. Objects of 1.5 MB are
possible, and a page of 250 of them would be the end of this process."""
_NOT_STORED = "etcdserver: "
"""Begins the API server's words where etcd has failed."""
_LOST_CONNECTION = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)

log = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """What traces get of a request that goes out, as its ``trace_request_ctx``."""

    again: bool
    """It went out before: with credentials that were refused, or by a connection that was lost. A GET or
    DELETE is sent once more by aiohttp itself, unseen."""
    waited: float = 0.0
    """Seconds for which it has waited for a turn."""


class Api(Protocol):
    """What the rest of the operator needs of a client; tests have one of their own."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object, or a page of a list (with the parameter ``limit``), whose ``items`` can be counted
        and iterated over."""

    async def create(self, path: str, body: Json) -> Json:
        """POST. Raises Invalid for a field that the server does not know."""

    async def patch(
        self,
        path: str,
        body: object,
        content_type: str,
        params: Mapping[str, str] | None = None,
        accept: str | None = None,
    ) -> Json:
        """PATCH."""

    async def delete(
        self, path: str, uid: str | None = None, grace: int | None = None, version: int | None = None
    ) -> Json:
        """Delete; with ``uid`` only that very object, with ``version`` only as it was (409 otherwise)."""

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
        """Stream events. The first item is empty: the server has accepted the watch."""

    @property
    def write_outages(self) -> WriteOutages:
        """Whether requests got proper answers."""


class Client:
    """See the module. Make it and use it inside one running event loop.

    ``unsent_seconds``: what the network does not take in that time is dropped with its connection. A write
    that was in the kernel's hands when the link was cut does not arrive minutes later. ``write_outages`` is
    shared by the clients of one API server. ``traces`` get to know its requests.
    """

    def __init__(
        self,
        credentials: Credentials,
        timeout: float = _TIMEOUT,
        may_write: Callable[[], bool] | None = None,
        unsent_seconds: float | None = None,
        write_outages: WriteOutages | None = None,
        traces: Sequence[aiohttp.TraceConfig] = (),
    ) -> None:
        self.write_outages = write_outages or WriteOutages()
        self._credentials = credentials
        self._may_write = may_write
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_TIMEOUT)
        self._records = FairLimiter(_RECORDS_AT_ONCE, _SLOW_OF_A_NAMESPACE, _SLOW_IN_ALL)
        self._others = FairLimiter(_OTHERS_AT_ONCE, _SLOW_OF_A_NAMESPACE, _SLOW_IN_ALL)
        self._readings = FairLimiter(_READINGS_AT_ONCE, _SLOW_OF_A_NAMESPACE, _SLOW_IN_ALL)
        asyncio.sslproto.SSLProtocol.max_size = _TLS_BUFFER
        self._reloading = asyncio.Lock()
        self._traces = list(traces)
        self._ssl: ssl.SSLContext = credentials.ssl_context()
        self._unsent_seconds = _DEAD_SECONDS if unsent_seconds is None else unsent_seconds
        self._session = self._new_session(keepalive_timeout=_KEEP_ALIVE)
        self._watching = self._new_session(force_close=True)
        self._answered_at = float("-inf")
        self._retired: set[asyncio.Task[None]] = set()

    def _new_session(self, **options: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=self._ssl,
                limit=0,
                enable_cleanup_closed=False,
                socket_factory=_dropping_after(self._unsent_seconds),
                **options,
            ),
            headers={"User-Agent": _USER_AGENT},
            auto_decompress=True,
            trace_configs=self._traces,
        )

    @property
    def waiting(self) -> int:
        """How many requests wait for a turn."""
        return self._records.waiting + self._others.waiting + self._readings.waiting

    async def aclose(self) -> None:
        """Close all connections."""
        for task in self._retired:
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        await self._session.close()
        await self._watching.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object, or one page of a list. Raises PageTooLarge for a page of more than
        ``MOST_OF_A_PAGE``: ask for fewer."""
        limit = None if params is None else params.get("limit")
        most = None if limit in (None, "1") else MOST_OF_A_PAGE
        read = object_of if limit is None else page_of
        return await self._request("GET", path, params=params, read=read, most=most)

    async def create(self, path: str, body: Json) -> Json:
        """POST. Raises Invalid for a field that the server does not know."""
        return await self._request("POST", path, body=body, content_type="application/json", params=_STRICT)

    async def patch(
        self,
        path: str,
        body: object,
        content_type: str,
        params: Mapping[str, str] | None = None,
        accept: str | None = None,
    ) -> Json:
        """PATCH."""
        return await self._request(
            "PATCH", path, body=body, content_type=content_type, params=params, accept=accept
        )

    async def delete(
        self, path: str, uid: str | None = None, grace: int | None = None, version: int | None = None
    ) -> Json:
        """Delete; with ``uid`` only that very object, with ``version`` only as it was (409 otherwise)."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if version is not None:
            options.setdefault("preconditions", {})["resourceVersion"] = str(version)
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return await self._request("DELETE", path, body=options, content_type="application/json")

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
        """Stream events. The first item is empty: the server has accepted the watch.

        Ends when the server ends it, or after a silence: on a resource of which there is no news, bookmarks
        may be late. Raises Gone for a 410 of either kind.
        """
        name = f"WATCH {path}"
        accepted = False
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT)
        query = {**params, "watch": "1", "allowWatchBookmarks": "true"}
        try:
            for fresh in (False, True):
                headers = await self._headers(fresh)
                opening = self._watching.get(
                    self._url(path),
                    params=query,
                    headers=headers,
                    timeout=timeout,
                    trace_request_ctx=Attempt(again=fresh),
                    **self._extra(),
                )
                async with asyncio.timeout(_WATCH_SILENCE):
                    response = await opening
                async with response:
                    if response.status == 401 and not fresh:
                        continue
                    if response.status != 200:
                        said = await asyncio.wait_for(response.read(), _TIMEOUT)
                        raise error_of(name, response.status, response.headers, said)
                    accepted = True
                    yield []
                    async with aclosing(watch_lines(response.content, _WATCH_SILENCE)) as batches:
                        async for batch in batches:
                            yield [event_of(name, line) for line in batch]
                    return
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            if accepted and isinstance(error, aiohttp.ServerTimeoutError):
                return
            raise Unavailable(name, 0, type(error).__name__, str(error) or "time limit") from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: object | None = None,
        content_type: str | None = None,
        params: Mapping[str, str] | None = None,
        accept: str | None = None,
        read: Callable[[str, bytes], Json] | None = None,
        most: int | None = None,
    ) -> Json:
        name = f"{method} {path}"
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        asked = time.monotonic()
        async with nullcontext() if method == "GET" and params is not None else self._turn(method, path):
            fresh = repeated = False
            began = time.monotonic()
            attempt = Attempt(again=False, waited=began - asked)
            while True:
                headers = dict(await self._headers(fresh))
                gated = None
                if data is not None and method != "GET" and self._may_write is not None:
                    gated = _GatedBody(data, self._may_write)
                    if not self._may_write():
                        raise NotLeading(name)
                if content_type is not None:
                    headers["Content-Type"] = content_type
                if accept is not None:
                    headers["Accept"] = accept
                session = self._session
                try:
                    async with session.request(
                        method,
                        self._url(path),
                        params=params,
                        data=data if gated is None else gated,
                        headers=headers,
                        timeout=self._timeout,
                        trace_request_ctx=attempt,
                        **self._extra(),
                    ) as response:
                        answer = await body_of(name, response, most)
                        status, answer_headers = response.status, response.headers
                        self._answered_at = time.monotonic()
                except _LOST_CONNECTION as error:
                    if not repeated and not isinstance(error, aiohttp.ClientConnectorError):
                        repeated, attempt = True, Attempt(again=True)
                        continue
                    raise self._no_answer(name, path, began, error) from error
                except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                    if gated is not None and gated.refused:
                        raise NotLeading(name) from error
                    self._leave(session, began)
                    raise self._no_answer(name, path, began, error) from error
                if status == 401 and not fresh:
                    fresh, attempt = True, Attempt(again=True)
                    continue
                if not 200 <= status < 300:
                    problem = error_of(name, status, answer_headers, answer, content_type == JSON_PATCH)
                    if isinstance(problem, Unavailable):
                        stored = _NOT_STORED in problem.message
                        self.write_outages.failed(path, began, time.monotonic(), stored)
                    raise problem
                if method != "GET":
                    self.write_outages.got_through(path, time.monotonic(), stored=params != DRY_RUN)
                return (read or object_of)(name, answer)

    def _turn(self, method: str, path: str) -> AbstractAsyncContextManager[None]:
        limiter = self._records if path.startswith(_RECORDS) else self._others
        limiter = self._readings if method == "GET" else limiter
        return limiter.turn(path.partition("/namespaces/")[2].partition("/")[0])

    def _no_answer(self, name: str, path: str, began: float, error: Exception) -> Unavailable:
        self.write_outages.no_answer(path, began, time.monotonic())
        slow = isinstance(error, asyncio.TimeoutError) and not isinstance(error, aiohttp.ClientError)
        kind = TookTooLong if slow else Unavailable
        return kind(name, 0, type(error).__name__, str(error) or "time limit")

    def _leave(self, session: aiohttp.ClientSession, began: float) -> None:
        """Use the connections of this session no more if none has brought an answer since."""
        if session is self._session and self._answered_at < began:
            self._session = self._new_session(keepalive_timeout=_KEEP_ALIVE)
            task = asyncio.get_running_loop().create_task(self._retire(session))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    async def _retire(self, session: aiohttp.ClientSession) -> None:
        try:
            await asyncio.sleep(self._timeout.total or 0.0)  # its last requests have ended by then
        finally:
            await session.close()

    def _url(self, path: str) -> str:
        return self._credentials.connection.server + path

    def _extra(self) -> dict[str, Any]:
        connection = self._credentials.connection
        extra: dict[str, Any] = {}
        if connection.proxy:
            extra["proxy"] = connection.proxy
        if connection.server_name:
            extra["server_hostname"] = connection.server_name
        return extra

    async def _headers(self, fresh: bool) -> Mapping[str, str]:
        if fresh or self._credentials.stale():
            async with self._reloading:
                if fresh or self._credentials.stale():
                    await in_own_thread(self._credentials.reload, "credentials")
        authorization = self._credentials.connection.authorization
        return {"Authorization": authorization} if authorization else {}


class _GatedBody(aiohttp.BytesPayload):
    """A request's body that is handed over only while ``may_write`` agrees.

    aiohttp holds the head of a request back for its body, so that nothing is sent before this is asked. A
    request that has a head and no body would be none, too.
    """

    def __init__(self, data: bytes, may_write: Callable[[], bool]) -> None:
        super().__init__(data)
        self._allowed = may_write
        self.refused = False

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by aiohttp when it has a connection."""
        if not self._allowed():
            self.refused = True
            raise RuntimeError("this operator does not lead")
        await super().write_with_length(writer, content_length)


def _dropping_after(seconds: float) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _name, _where = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {"TCP_USER_TIMEOUT": max(1, int(seconds * 1000)), **_KEEP_ALIVE_PROBES}
        for name, value in options.items():
            if hasattr(socket, name):  # Linux
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return made

    return make
