"""Leases of one namespace: watch one by name, write one by name.

The first write of a process takes its Lease over by server-side apply, which also creates the Lease. RBAC can
limit a server-side apply to one name, which it cannot do for a POST. Each later write is a merge patch with
the resourceVersion of the one before.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from elasticjob.api.connection import Connection
from elasticjob.api.errors import ApiError, NotFound, Unauthorized, Unavailable, from_status
from elasticjob.api.http import urllib3
from elasticjob.contract import names

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 12.0
"""A connection that is dead must not cost a member its place: this is well below ``rejoinTimeoutSeconds``."""
RETRY_ANSWER_SECONDS = 30.0
"""After a request that had no answer, on a new connection: the server may be that slow."""
WATCH_SECONDS = (200, 280)
"""Seconds after which the server ends a watch; a new one begins with the current state. Each gets a time of
its own: those of a large job are opened within a second, and would all end within a second."""
SILENT_WATCH_SECONDS = 75.0
"""The API server sends a bookmark about every 60 s: a watch that brings nothing for longer is dead."""
MAX_EVENT_BYTES = 4_000_000
MAX_RETRY_AFTER_SECONDS = 10.0
"""The API server asks for seconds. What stands before it may ask for anything, also for a date; but others
judge a participant by its silence when it could have written again (``peers.silence.CATCH_UP_SECONDS``)."""


@dataclass(frozen=True)
class Lease:
    """What is read of a Lease. ``deleted``: a watch says that it is gone, and this is how it was."""

    resource_version: str
    holder: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    name: str = ""
    transitions: int = 0
    """How often its holder has changed."""
    created: str = ""
    """When it was made, by the API server's clock."""


class LeaseApi(Protocol):
    """The calls that a participant makes."""

    def watch(self, name: str) -> Iterator[Lease | None]:
        """Open a watch: the present state first, then each change, also a deletion; None for a sign of life
        without one.

        Ends when the server ends it; raises ApiError.
        """

    def take_over(self, name: str, lease: Mapping[str, Any]) -> Lease:
        """Create the Lease or make it ours, also if it was of another. Raises ApiError."""

    def patch(self, name: str, patch: Mapping[str, Any]) -> Lease:
        """Merge a change into the Lease; a resourceVersion in it is a precondition (Conflict)."""

    def read(self, name: str) -> Lease:
        """The Lease as it is now. Raises NotFound and other ApiErrors."""

    def job_exists(self, job: str) -> bool | None:
        """Whether there is an ElasticJob of that name; None if this identity may not know."""

    def reopen_watch(self) -> None:
        """Give the watch under way up, from another thread: it ends, and the next has a new connection."""

    def stop(self) -> None:
        """End the watch from another thread."""


class HttpLeaseApi:
    """``LeaseApi`` over HTTP. The watch holds one connection, everything else shares another."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._base = f"{connection.base}/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._jobs = f"{connection.base}/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self._watch: urllib3.BaseHTTPResponse | None = None
        self._stopped = False
        self._answer_timeout = ANSWER_SECONDS
        self._has_socket = True

    def watch(self, name: str) -> Iterator[Lease | None]:
        """See ``LeaseApi``."""
        for line in self._watch_lines(f"{self._base}?fieldSelector=metadata.name%3D{name}", f"Lease {name}"):
            yield _event(name, line) if line else None

    def _watch_lines(self, url: str, what: str) -> Iterator[bytes]:
        """The events of a watch of what ``url`` lists; first an empty line, once the server has answered."""
        query = f"&watch=1&allowWatchBookmarks=true&timeoutSeconds={random.randint(*WATCH_SECONDS)}"
        # The server answers at once that it watches, and may then be silent for long.
        opening = ANSWER_SECONDS if self._has_socket else SILENT_WATCH_SECONDS
        response = self._request("GET", url + query, read_timeout=opening, stream=True)
        self._has_socket = _set_read_timeout(response, SILENT_WATCH_SECONDS)
        self._watch = response
        try:
            yield b""
            buffer = b""
            for chunk in response.stream(65536, decode_content=False):
                if self._stopped:
                    return
                buffer += chunk
                if len(buffer) > MAX_EVENT_BYTES:
                    raise Unavailable(f"watch of {what}: an event is longer than {MAX_EVENT_BYTES} bytes")
                *lines, buffer = buffer.split(b"\n")
                yield from filter(None, lines)
        except urllib3.exceptions.HTTPError as error:
            if not self._stopped:
                raise Unavailable(f"watch of {what}: {error}") from None
        finally:
            self._watch = None
            response.close()

    def take_over(self, name: str, lease: Mapping[str, Any]) -> Lease:
        """See ``LeaseApi``."""
        path = f"/{name}?fieldManager=elasticjob&force=true"
        return self._write(path, "application/apply-patch+yaml", lease)

    def patch(self, name: str, patch: Mapping[str, Any]) -> Lease:
        """See ``LeaseApi``."""
        return self._write(f"/{name}?fieldManager=elasticjob", "application/merge-patch+json", patch)

    def read(self, name: str) -> Lease:
        """See ``LeaseApi``."""
        return read_lease(read_body(self._request("GET", f"{self._base}/{name}")))

    def job_exists(self, job: str) -> bool | None:
        """See ``LeaseApi``."""
        try:
            self._request("GET", f"{self._jobs}/{job}")
        except NotFound:
            return False
        except ApiError:
            return None
        return True

    def reopen_watch(self) -> None:
        """See ``LeaseApi``."""
        # What is idle may be as dead as what is given up.
        self._connection.pool.clear()
        self._end_watch()

    def stop(self) -> None:
        """See ``LeaseApi``."""
        self._stopped = True
        self._end_watch()

    def _end_watch(self) -> None:
        response = self._watch
        if response is not None:
            # The watch may end by itself at this moment, as it does with the last record of a job: whichever
            # error urllib3 has for a response whose socket is gone, there is nothing left to end.
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                response.shutdown() if hasattr(response, "shutdown") else response.close()

    def _write(self, path: str, content_type: str, body: Mapping[str, Any]) -> Lease:
        headers = {"content-type": content_type}
        return read_lease(
            read_body(self._request("PATCH", self._base + path, headers, json.dumps(body).encode()))
        )

    def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        read_timeout: float = 0.0,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        try:
            response = self._connection.pool.request(
                method,
                url,
                body=body,
                headers={
                    "accept": "application/json",
                    "user-agent": "elasticjob-handler",
                    **self._connection.headers(),
                    **(headers or {}),
                },
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_timeout or self._answer_timeout),
                preload_content=not stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._answer_timeout = RETRY_ANSWER_SECONDS
            self._connection.pool.clear()
            raise Unavailable(f"{method} {url}: {error}") from None
        self._answer_timeout = ANSWER_SECONDS
        if response.status >= 400:
            if response.status == 401:
                self._connection.forget_token()
            text = response.data[:2000].decode("utf-8", "replace")
            response.release_conn()
            refusal = from_status(
                response.status, _reason(text), _seconds(response.headers.get("retry-after", ""))
            )
            if isinstance(refusal, Unauthorized):
                refusal.lasting = self._connection.token_lasts()
            raise refusal
        return response


def _set_read_timeout(response: urllib3.BaseHTTPResponse, seconds: float) -> bool:
    """Let what is still to come of an answer take longer. False if its socket can't be had."""
    connection: Any = response.connection
    sock = getattr(connection, "sock", None)
    if sock is None:  # after `Connection: close`
        return False
    sock.settimeout(seconds)
    return True


def read_body(response: urllib3.BaseHTTPResponse) -> dict[str, Any]:
    """The object in an answer. Raises Unavailable."""
    try:
        value = json.loads(response.data)
    except ValueError as error:
        raise Unavailable(f"the API server's answer is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unavailable("the API server's answer is not an object")
    return value


def _event(name: str, line: bytes) -> Lease | None:
    try:
        event = json.loads(line)
        kind, body = event["type"], event["object"]
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"watch of Lease {name}: an event cannot be read") from None
    if kind == "ERROR":
        raise ApiError(f"watch of Lease {name}: {body.get('message', '')}", int(body.get("code") or 0))
    if kind not in ("ADDED", "MODIFIED", "DELETED"):
        return None
    return replace(read_lease(body), deleted=kind == "DELETED")


def read_lease(body: Mapping[str, Any]) -> Lease:
    """A Lease, as far as it is used."""
    metadata = body.get("metadata") or {}
    return Lease(
        resource_version=str(metadata.get("resourceVersion", "")),
        holder=str((body.get("spec") or {}).get("holderIdentity") or ""),
        annotations=metadata.get("annotations") or {},
        name=str(metadata.get("name", "")),
        transitions=_number((body.get("spec") or {}).get("leaseTransitions")),
        created=str(metadata.get("creationTimestamp", "")),
    )


def _number(value: object) -> int:
    """Of an optional field."""
    return value if isinstance(value, int) else 0


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]


def _seconds(text: str) -> float:
    """What Retry-After asks for, as far as it is a number."""
    number = text.strip()
    return min(float(number), MAX_RETRY_AFTER_SECONDS) if number.isascii() and number.isdigit() else 0.0
