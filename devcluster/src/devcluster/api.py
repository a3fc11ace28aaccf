"""The few requests that devcluster and the tests make themselves, mostly to an API server.

kubectl starts in a tenth of a second or more and reads discovery first: too slow to poll with.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3


@dataclass(frozen=True)
class Response:
    """An answer: `status` is 0 when there was none (refused, reset, timed out); then `text` says why."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def ok(self) -> bool:
        """Whether the server did what was asked."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON. Raises ValueError if it is none."""
        return json.loads(self.text)


class ApiClient:
    """Requests to one server (`https://HOST:PORT`), verified by `ca_file`, with an optional bearer token."""

    def __init__(self, server: str, ca_file: Path | None = None, token: str | None = None) -> None:
        self._server = server
        self._headers = {"User-Agent": "devcluster"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # 3.13's default would refuse a bare authority
        self._pool = urllib3.PoolManager(ssl_context=context, retries=False)

    def request(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Response:
        """Send one request, `body` as JSON, with further `headers`.

        Never raises for what a server or a network can do.
        """
        data = None if body is None else json.dumps(body).encode()
        every = {
            **self._headers,
            **({} if data is None else {"Content-Type": content_type}),
            **(headers or {}),
        }
        try:
            answer = self._pool.request(
                method, self._server + path, body=data, headers=every, timeout=timeout
            )
        except urllib3.exceptions.HTTPError as error:
            return Response(0, {}, str(error))
        return Response(answer.status, answer.headers, answer.data.decode(errors="replace"))

    def is_ok(self, path: str, timeout: float = 2.0) -> bool:
        """Whether GET `path` is answered with a success in time."""
        return self.request("GET", path, timeout=timeout).ok
