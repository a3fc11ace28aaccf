"""lightkube's clients, with what they lack: proxies and server names of a kubeconfig, login programs that are
heard, more than a hundred requests at once, and logs that can be opened again and be interrupted."""

from __future__ import annotations

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
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import Status
from lightkube.resources.core_v1 import PodLog

from elasticjob.contract.names import GROUP, KIND, PLURAL, VERSION
from elasticjob_client import proxy
from elasticjob_client.access import Access, access
from elasticjob_client.decoding import ready
from elasticjob_client.login import authentication
from elasticjob_client.patience import Notice
from elasticjob_client.splitting import async_lines_of, lines_of
from elasticjob_client.streams import lasting

RESOURCE = create_namespaced_resource(GROUP, VERSION, KIND, PLURAL)
FIELD_MANAGER = "elasticjob-client"
TIMEOUT_SECONDS = 10.0
"""The timeout of each step of a request that is answered at once."""
CHANGE_SECONDS = 40.0
"""How long the answer to a change is waited for: webhooks may take 30 s."""
WATCH_SECONDS = 240
"""After which the server is to end a watch: one whose connection is dead would be silent for ever."""
_SILENT_WATCH = WATCH_SECONDS + 30.0
"""How long a watch may be silent."""
_FIRST_LINE_SECONDS = 60.0
"""How long the first line of a log is waited for, before which the kubelet answers nothing. A log that has
begun may be silent for as long as it likes."""
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


class _Parameters(ConnectionParams):
    """How lightkube makes its HTTP client."""

    def __init__(self, found: Access, notice: Notice, asynchronous: bool) -> None:
        super().__init__(timeout=httpx2.Timeout(TIMEOUT_SECONDS), proxy=found.proxy)
        self._server_name, self._notice, self._asynchronous = found.server_name, notice, asynchronous
        self._place = proxy.place(found.proxy, found.config.cluster.server)

    def httpx_params(self, config: SingleConfig) -> dict[str, Any]:
        assert config.user
        hook = self._prepare_too if self._asynchronous else self._prepare
        return {
            "base_url": config.cluster.server,
            "verify": verify_cluster(config.cluster, config.user, config.abs_file),
            "auth": authentication(config.user, self._notice),
            "timeout": self.timeout,
            "proxy": self.proxy,
            "limits": _LIMITS,
            "event_hooks": {"request": [hook]},
        }

    def _prepare(self, request: httpx2.Request) -> None:
        found = {**request.extensions, proxy.EXTENSION: self._place}
        if self._server_name:
            found["sni_hostname"] = self._server_name
        if request.method != "GET":
            found["timeout"] = {**found["timeout"], "read": CHANGE_SECONDS}
        request.extensions = found

    async def _prepare_too(self, request: httpx2.Request) -> None:
        self._prepare(request)


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

    def written(self, pod: str, **asked: Any) -> Iterator[str]:
        """The lines of a log so far, from the time ``since`` on if there is one."""
        response: httpx2.Response = self._client.send(_log_request(self._client, pod, follow=False, **asked))
        self._client.raise_for_status(response)
        yield from lines_of(response)

    @contextmanager
    def followed(self, pod: str, **asked: Any) -> Iterator[httpx2.Response]:
        """A log that is still written, from the time ``since`` on if there is one."""
        with self._opened(_log_request(self._client, pod, follow=True, **asked), None) as response:
            yield response

    @contextmanager
    def watched(self, resource: type, **asked: Any) -> Iterator[httpx2.Response]:
        """One watch, from a version on, until the server or the connection ends it."""
        with self._opened(_watch_request(self._client, resource, **asked), _SILENT_WATCH) as response:
            yield response

    @contextmanager
    def _opened(self, request: httpx2.Request, silent: float | None) -> Iterator[httpx2.Response]:
        response: httpx2.Response = self._client.send(request, stream=True)
        try:
            if response.is_error:
                response.read()
            self._client.raise_for_status(response)
            lasting(request, response, silent)
            yield response
        finally:
            response.close()


class AsyncConnection(_Connected, AsyncClient):
    """The asynchronous client of a kubeconfig. Raises ConfigError, which names the file."""

    _generic = GenericAsyncClient

    async def written(self, pod: str, **asked: Any) -> AsyncIterator[str]:
        """The lines of a log so far, from the time ``since`` on if there is one."""
        request = _log_request(self._client, pod, follow=False, **asked)
        response: httpx2.Response = await self._client.send(request)
        self._client.raise_for_status(response)
        async for line in async_lines_of(response):
            yield line

    @asynccontextmanager
    async def followed(self, pod: str, **asked: Any) -> AsyncIterator[httpx2.Response]:
        """A log that is still written, from the time ``since`` on if there is one."""
        async with self._opened(_log_request(self._client, pod, follow=True, **asked), None) as response:
            yield response

    @asynccontextmanager
    async def watched(self, resource: type, **asked: Any) -> AsyncIterator[httpx2.Response]:
        """One watch, from a version on, until the server or the connection ends it."""
        async with self._opened(_watch_request(self._client, resource, **asked), _SILENT_WATCH) as response:
            yield response

    @asynccontextmanager
    async def _opened(self, request: httpx2.Request, silent: float | None) -> AsyncIterator[httpx2.Response]:
        response: httpx2.Response = await self._client.send(request, stream=True)
        try:
            if response.is_error:
                await response.aread()
            self._client.raise_for_status(response)
            lasting(request, response, silent)
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
    follow: bool,
) -> httpx2.Request:
    asked = {
        "timestamps": timestamps,
        "tailLines": tail_lines,
        "container": container,
        "sinceTime": since.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if since else None,
        "follow": follow,
    }
    request: BasicRequest = client.prepare_request("get", PodLog, name=pod, namespace=namespace, params=asked)
    if follow:
        request.timeout = httpx2.Timeout(TIMEOUT_SECONDS, read=_FIRST_LINE_SECONDS)
    return client.build_adapter_request(request)


def _watch_request(
    client: GenericClient, resource: type, *, namespace: str, name: str, version: str
) -> httpx2.Request:
    asked = {
        "fieldSelector": f"metadata.name={name}",
        "resourceVersion": version,
        "timeoutSeconds": WATCH_SECONDS,
    }
    request: BasicRequest = client.prepare_request(
        "list", resource, namespace=namespace, watch=True, params=asked
    )
    return client.build_adapter_request(request)
