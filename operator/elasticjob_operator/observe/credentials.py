"""How to reach the API server, and with which identity: the official client's config loaders do the reading.

They know every kind of kubeconfig (exec plugins, OIDC, client certificates) and the in-cluster files; we take
nothing else from that package. lightkube's KubeConfig is not enough: it runs exec plugins only inside of its
own requests, refuses those of ``client.authentication.k8s.io/v1``, drops client certificates that they print,
and does not know proxy-url, tls-server-name and OIDC.

An explicit ``KUBECONFIG`` wins over the service account of the pod, else the pod's service account, else the
default kubeconfig.

A token is read again at most once a minute (kubelet rotates it on disk) and at once after a 401.
"""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass
from typing import Any

from elasticjob.api.tls import client_context
from elasticjob_operator.logs import hide

_REREAD_SECONDS = 60.0


class NoCredentials(Exception):
    """Neither a kubeconfig nor a service account was found."""


@dataclass(frozen=True)
class Connection:
    """What the config says, as plain data. Paths may be temporary files that the loader has made."""

    server: str
    ca_path: str | None
    verify: bool
    certificate_path: str | None
    key_path: str | None
    server_name: str | None
    proxy: str | None
    authorization: str | None
    """The value of the Authorization header."""


class Credentials:
    """The connection, and an Authorization header that stays fresh. Not for use by several threads."""

    def __init__(self) -> None:
        self.connection = load()
        self._read_at = time.monotonic()

    def stale(self) -> bool:
        """Whether it is time to read the token again."""
        return time.monotonic() - self._read_at > _REREAD_SECONDS

    def reload(self) -> None:
        """Read everything again. It may block (an exec plugin); call it in a thread."""
        self.connection = load()
        self._read_at = time.monotonic()

    def ssl_context(self) -> ssl.SSLContext:
        """TLS as the config wants it."""
        connection = self.connection
        context = client_context(connection.ca_path, connection.verify)
        if connection.certificate_path:
            context.load_cert_chain(connection.certificate_path, connection.key_path)
        return context


def load() -> Connection:
    """Read the config. Raises NoCredentials."""
    # 0.3-0.5 s and 20 MiB: not where this module is only imported.
    from kubernetes import config
    from kubernetes.client import Configuration

    found: Any = Configuration()
    try:
        chosen = os.environ.get("KUBECONFIG")
        if chosen:
            # Named: the package has read the variable when it was imported, and not since.
            config.load_kube_config(config_file=chosen, client_configuration=found)
        else:
            _in_cluster_or_default(config, found)
    except config.ConfigException as error:
        raise NoCredentials(f"neither a kubeconfig nor a service account to log in with: {error}") from error
    authorization = found.get_api_key_with_prefix("BearerToken", alias="authorization")
    if not authorization and found.username:
        authorization = found.get_basic_auth_token()
    hide(authorization)
    hide(found.password)
    return Connection(
        server=str(found.host).rstrip("/"),
        ca_path=found.ssl_ca_cert or None,
        verify=bool(found.verify_ssl),
        certificate_path=found.cert_file or None,
        key_path=found.key_file or None,
        server_name=getattr(found, "tls_server_name", None) or None,
        proxy=getattr(found, "proxy", None) or None,
        authorization=str(authorization).strip() if authorization else None,
    )


def _in_cluster_or_default(config: Any, found: Any) -> None:
    try:
        config.load_incluster_config(client_configuration=found)
    except config.ConfigException:
        config.load_kube_config(client_configuration=found)
