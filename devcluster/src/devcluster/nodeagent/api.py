"""A small Kubernetes client: JSON in, JSON out, and a watch that can be driven from outside.

Not the official package: the agent needs five verbs, hundreds of concurrent requests on one event loop, and
latencies near a millisecond.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as parsed JSON."""

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"

_REQUEST_LIMIT = aiohttp.ClientTimeout(total=15)
_WATCH_SECONDS = 300


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


UNREACHABLE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What is raised when there is no answer."""


@dataclass(frozen=True)
class Credentials:
    """What a kubeconfig's current context says."""

    server: str
    ca: bytes
    token: str | None
    client_certificate: tuple[bytes, bytes] | None
    """PEM of certificate and key."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the API server."""
        parts = urlsplit(self.server)
        return parts.hostname or "127.0.0.1", parts.port or 443

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Read a kubeconfig (token or client certificate; data embedded or as files)."""
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        certificate, key = _data(user, "client-certificate"), _data(user, "client-key")
        return cls(
            server=cluster["server"],
            ca=_data(cluster, "certificate-authority") or b"",
            token=user.get("token"),
            client_certificate=(certificate, key) if certificate and key else None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """A context that trusts this cluster's authority only."""
        context = ssl.create_default_context(cadata=self.ca.decode())
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.client_certificate is not None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(b"\n".join(self.client_certificate))
                file.flush()
                context.load_cert_chain(file.name)
        return context


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _data(entry: Object, key: str) -> bytes | None:
    if text := entry.get(f"{key}-data"):
        return base64.b64decode(text)
    return Path(entry[key]).read_bytes() if key in entry else None


class Api:
    """A session with one API server; use it as an async context manager."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        headers = {"User-Agent": "devcluster-nodeagent", "Accept": "application/json"}
        if credentials.token is not None:
            headers["Authorization"] = f"Bearer {credentials.token}"
        self._session = aiohttp.ClientSession(
            base_url=credentials.server,
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=credentials.ssl_context(), limit=64),
            timeout=_REQUEST_LIMIT,
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Object:
        """One request.

        :raises ApiError: the server answered with an error
        :raises UNREACHABLE: it did not answer
        """
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        async with self._session.request(method, path, data=data, headers=headers) as response:
            text = await response.text()
            if response.status >= 400:
                raise ApiError(response.status, _message(text))
            parsed: Object = json.loads(text)
            return parsed

    async def get(self, path: str) -> Object:
        """GET an object or a list."""
        return await self.request("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        """POST to a collection or a subresource."""
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, content_type: str = STRATEGIC) -> Object:
        """PATCH an object."""
        return await self.request("PATCH", path, body, content_type)

    async def delete(self, path: str, options: Object) -> Object:
        """DELETE an object with DeleteOptions."""
        return await self.request("DELETE", path, options)

    async def watch(self, path: str, resource_version: str) -> AsyncIterator[Object]:
        """Events after ``resource_version`` until the stream ends. ``path`` has its query already.

        :raises ApiError: among others 410, also when the server sends it as an event: list again
        """
        query = f"&watch=1&allowWatchBookmarks=true&resourceVersion={resource_version}"
        url = f"{path}{query}&timeoutSeconds={_WATCH_SECONDS}"
        limit = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 30, sock_connect=5)
        async with self._session.get(url, timeout=limit) as response:
            if response.status >= 400:
                raise ApiError(response.status, _message(await response.text()))
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    event: Object = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    yield event


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        return text[:500]
