"""How to reach the API server: from inside a pod by urllib3 alone, outside by the kubeconfig.

In a pod the token is read again at most once a minute, and at once after a 401 (kubelet rotates it).
Outside a pod the official ``kubernetes`` package reads the kubeconfig and hands over its TLS settings
and credentials; it is imported only there.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticjob.api.http import urllib3
from elasticjob.api.tls import client_context
from elasticjob.contract.names import SERVICE_ACCOUNT_DIR_ENV

DEFAULT_SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 60.0
RENEWED_AT = 0.8
"""The share of a token's life after which the kubelet replaces it,"""
RENEWED_AFTER_SECONDS = 86_400.0
"""and after how many seconds in any case."""


class ConfigurationError(Exception):
    """There is no way to the API server. The text says what was looked for and what to set."""


@dataclass
class Connection:
    """A pool of connections to one API server. ``headers`` gives the credentials of the moment;
    ``namespace`` is the default one; ``pod`` is (name, uid) if the token is bound to a pod. ``token_lasts``:
    whether a token that has just been refused is the one that there is, and will be for long."""

    base: str
    pool: urllib3.PoolManager
    headers: Callable[[], dict[str, str]]
    namespace: str = ""
    pod: tuple[str, str] = ("", "")
    forget_token: Callable[[], None] = field(default=lambda: None)
    token_lasts: Callable[[], bool] = field(default=lambda: False)


def connect(kubeconfig: str = "") -> Connection:
    """Find the API server. Raises ConfigurationError."""
    directory = Path(os.environ.get(SERVICE_ACCOUNT_DIR_ENV) or DEFAULT_SERVICE_ACCOUNT_DIR)
    if not kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST") and (directory / "token").exists():
        return _in_pod(directory)
    return _outside(kubeconfig)


class _TokenFile:
    """The service account's token, read again when it is a minute old."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = float("-inf")
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        with self._lock:
            if time.monotonic() - self._read_at > TOKEN_SECONDS:
                self._token = self._path.read_text().strip()
                self._read_at = time.monotonic()
            return {"authorization": f"Bearer {self._token}"}

    def forget(self) -> None:
        with self._lock:
            self._read_at = float("-inf")

    def lasts(self) -> bool:
        try:
            there = self._path.read_text().strip()
        except OSError:
            return False
        with self._lock:
            return there == self._token and time.time() < renewed_at(there)


def _in_pod(directory: Path) -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = _TokenFile(directory / "token")
    ca, namespace = directory / "ca.crt", directory / "namespace"
    if not ca.exists():
        raise ConfigurationError(
            f"{directory} has a token but no ca.crt: mount the whole service account volume"
        )
    context = client_context(str(ca))
    return Connection(
        base=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        pool=_pool(context),
        headers=token.headers,
        namespace=namespace.read_text().strip() if namespace.exists() else "",
        pod=bound_pod(token.headers()["authorization"]),
        forget_token=token.forget,
        token_lasts=token.lasts,
    )


def _outside(kubeconfig: str) -> Connection:
    try:
        import kubernetes.client
        import kubernetes.config
    except ImportError:
        raise ConfigurationError(
            "not in a pod (KUBERNETES_SERVICE_HOST or the service account token is missing; is "
            "automountServiceAccountToken off?), and the package kubernetes, which reads a kubeconfig, "
            "is not installed: pip install 'elasticjob[kubeconfig]'"
        ) from None
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_kube_config(config_file=kubeconfig or None, client_configuration=configuration)
        _, active = kubernetes.config.list_kube_config_contexts(config_file=kubeconfig or None)
    except kubernetes.config.ConfigException as error:
        raise ConfigurationError(
            f"not in a pod, and cannot use a kubeconfig ({error}): run in a pod with a service account, "
            "or set KUBECONFIG"
        ) from None
    context = client_context(configuration.ssl_ca_cert, bool(configuration.verify_ssl))
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)

    def headers() -> dict[str, str]:
        token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"authorization": token} if token else {}

    return Connection(
        base=str(configuration.host).rstrip("/"),
        pool=_pool(context),
        headers=headers,
        namespace=(active or {}).get("context", {}).get("namespace", "default"),
        pod=bound_pod(headers().get("authorization", "")),
    )


def _pool(context: ssl.SSLContext) -> urllib3.PoolManager:
    return urllib3.PoolManager(
        num_pools=2,
        maxsize=4,
        retries=False,
        ssl_context=context,
        socket_options=[*urllib3.connection.HTTPConnection.default_socket_options, *_keepalive()],
    )


def _keepalive() -> list[tuple[int, int, int]]:
    """A connection that lost its peer without a word ends within about ten seconds, idle or not.

    Only the kernels speak, so that it costs the API server no request. What ends a connection before the API
    server, as a load balancer does, may go on answering: see ``HttpLeaseApi.reopen_watch``.
    """
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 10_000),  # milliseconds; Linux
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def bound_pod(authorization: str) -> tuple[str, str]:
    """(name, uid) of the pod that a service account token is bound to, or two empty strings.

    The claims are read, not verified: they tell this pod's identity, the API server decides what it may do.
    """
    try:
        pod = _claims(authorization.removeprefix("Bearer "))["kubernetes.io"]["pod"]
        return str(pod["name"]), str(pod["uid"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def renewed_at(token: str) -> float:
    """From when on (seconds since the epoch) the kubelet replaces this token; 0 if it does not tell.

    Where the API server lets tokens live for a year, ``warnafter`` is the end of the life that was asked for.
    """
    try:
        claims = _claims(token)
        begin, end = float(claims["iat"]), float(claims["exp"])
        end = min(end, float(claims.get("kubernetes.io", {}).get("warnafter", end)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0.0
    return begin + min(RENEWED_AT * (end - begin), RENEWED_AFTER_SECONDS)


def _claims(token: str) -> Any:
    """Raises ValueError if it is not one."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("no JSON Web Token")
    return json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
