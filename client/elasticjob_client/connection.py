"""lightkube's clients, with what they lack: proxies and server names of a kubeconfig, login programs that are
heard, more than a hundred requests at once, and logs that can be opened again and be interrupted."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timezone
from typing import Any

import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.client import Client
from lightkube.core.exceptions import ConfigError
from lightkube.core.generic_client import BasicRequest, GenericAsyncClient, GenericClient, GenericSyncClient
from lightkube.models.meta_v1 import Status
from lightkube.resources.core_v1 import PodLog

from elasticjob_client.access import Access, access
from elasticjob_client.decoding import ready
from elasticjob_client.login import authentication
from elasticjob_client.patience import Notice

TIMEOUT_SECONDS = 10.0
"""Of each step of a request. A log that is followed may be silent for as long as it likes."""
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


class _Parameters(ConnectionParams):
    """How lightkube makes its HTTP client."""

    def __init__(self, found: Access, notice: Notice, asynchronous: bool) -> None:
        super().__init__(timeout=httpx2.Timeout(TIMEOUT_SECONDS), proxy=found.proxy)
        self._server_name, self._notice, self._asynchronous = found.server_name, notice, asynchronous

    def httpx_params(self, config: SingleConfig) -> dict[str, Any]:
        assert config.user
        hook = self._name_too if self._asynchronous else self._name
        return {
            "base_url": config.cluster.server,
            "verify": verify_cluster(config.cluster, config.user, config.abs_file),
            "auth": authentication(config.user, self._notice),
            "timeout": self.timeout,
            "proxy": self.proxy,
            "limits": _LIMITS,
            "event_hooks": {"request": [hook] if self._server_name else []},
        }

    def _name(self, request: httpx2.Request) -> None:
        request.extensions = {**request.extensions, "sni_hostname": self._server_name}

    async def _name_too(self, request: httpx2.Request) -> None:
        self._name(request)


class _Connected:
    """What both clients are made of. Raises ConfigError, which names the file."""

    _generic: type[GenericSyncClient] | type[GenericAsyncClient]
    _client: Any

    def __init__(
        self,
        namespace: str | None,
        kubeconfig: str | None,
        context: str | None,
        notice: Notice,
        field_manager: str,
    ) -> None:
        found = access(kubeconfig, context)
        self._timeout = httpx2.Timeout(TIMEOUT_SECONDS)
        with _understood(found):
            self._client = self._generic(
                _Parameters(found, notice, asynchronous=issubclass(self._generic, GenericAsyncClient)),
                found.config,
                namespace=namespace,
                lazy=True,
                field_manager=field_manager,
            )


class Connection(_Connected, Client):
    """The synchronous client of a kubeconfig. Raises ConfigError, which names the file."""

    _generic = GenericSyncClient

    @contextmanager
    def followed(self, pod: str, **asked: Any) -> Iterator[httpx2.Response]:
        """A log that is still written, from the time ``since`` on if there is one."""
        client = self._client
        response: httpx2.Response = client.send(_log_request(client, pod, **asked), stream=True)
        try:
            if response.is_error:
                response.read()
            client.raise_for_status(response)
            yield response
        finally:
            response.close()


class AsyncConnection(_Connected, AsyncClient):
    """The asynchronous client of a kubeconfig. Raises ConfigError, which names the file."""

    _generic = GenericAsyncClient

    @asynccontextmanager
    async def followed(self, pod: str, **asked: Any) -> AsyncIterator[httpx2.Response]:
        """A log that is still written, from the time ``since`` on if there is one."""
        client = self._client
        response: httpx2.Response = await client.send(_log_request(client, pod, **asked), stream=True)
        try:
            if response.is_error:
                await response.aread()
            client.raise_for_status(response)
            yield response
        finally:
            await response.aclose()


@contextmanager
def _understood(found: Access) -> Iterator[None]:
    """What is wrong with a kubeconfig is said of its file."""
    ready(Status)  # of refusals, which any thread may get
    try:
        yield
    except httpx2.InvalidURL:  # not its text, which may have a password of a proxy
        raise ConfigError(
            f"{found.source} is not usable: expected https://HOST:PORT as its server, and as HTTPS_PROXY"
        ) from None
    except (ValueError, msgspec.MsgspecError, TypeError, KeyError, ImportError) as error:
        raise ConfigError(f"{found.source} is not usable: {error}") from error


def _log_request(
    client: GenericClient,
    pod: str,
    *,
    namespace: str,
    container: str | None,
    since: datetime | None,
    tail_lines: int | None,
    timestamps: bool,
) -> httpx2.Request:
    asked = {
        "timestamps": timestamps,
        "tailLines": tail_lines,
        "container": container,
        "sinceTime": since.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if since else None,
        "follow": True,
    }
    request: BasicRequest = client.prepare_request("get", PodLog, name=pod, namespace=namespace, params=asked)
    request.timeout = httpx2.Timeout(TIMEOUT_SECONDS, read=None)
    return client.build_adapter_request(request)


def interrupt(response: httpx2.Response) -> None:
    """End an answer whose end another thread waits for."""
    stream = response.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if isinstance(found, socket.socket):
        with contextlib.suppress(OSError):
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # of a TLS socket too: without its farewell
