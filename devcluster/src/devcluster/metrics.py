"""Metrics for an autoscaler, through the API server's aggregation layer as in a production cluster.

A HorizontalPodAutoscaler reads external.metrics.k8s.io from the API server, which asks the server that an
APIService names: here `devcluster.metrics_server`, behind a Service of type ExternalName, since Endpoints
refuse loopback addresses. The API server verifies its certificate.

The APIService exists only while it is in use: an API group without a server holds up the deletion of
every namespace.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

from devcluster.api import ApiClient, Response
from devcluster.metrics_server import GROUP, VERSION
from devcluster.wait import wait_for

_NAMESPACE = "kube-system"
_SERVICE = "devcluster-metrics"
_SERVICES = f"/api/v1/namespaces/{_NAMESPACE}/services"
_API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
_NAME = f"{VERSION}.{GROUP}"
_SERVED_TIMEOUT_SECONDS = 60.0


class ExternalMetrics:
    """The metrics of one cluster. Made by `Cluster.external_metrics`."""

    SERVER_NAME = f"{_SERVICE}.{_NAMESPACE}.svc"
    """What the server's certificate must hold good for."""

    def __init__(self, api: ApiClient, control: ApiClient, port: int, ca_file: Path) -> None:
        self._api = api
        self._control = control
        self._port = port
        self._ca_bundle = base64.b64encode(ca_file.read_bytes()).decode()

    def set(self, namespace: str, metric: str, value: str | int) -> None:
        """Let `metric` have this value (a Kubernetes quantity) in `namespace`, from now on."""
        _expect(self._control.request("PUT", f"/values/{namespace}/{metric}", {"value": str(value)}))

    def unset(self, namespace: str, metric: str) -> None:
        """Remove this metric: an autoscaler then does nothing and says so."""
        _expect(self._control.request("DELETE", f"/values/{namespace}/{metric}"))

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Have the API server serve them."""
        service = {
            "metadata": {"name": _SERVICE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        registration = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": _NAME},
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "service": {"namespace": _NAMESPACE, "name": _SERVICE, "port": self._port},
                "caBundle": self._ca_bundle,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        }
        try:
            _expect(self._api.request("POST", _SERVICES, service))
            _expect(self._api.request("POST", _API_SERVICES, registration))
            wait_for(
                self._is_served,
                _SERVED_TIMEOUT_SECONDS,
                lambda: f"{_NAME} is served: {self._api.request('GET', f'{_API_SERVICES}/{_NAME}').text}",
            )
            yield
        finally:
            self._api.request("DELETE", f"{_API_SERVICES}/{_NAME}")
            self._api.request("DELETE", f"{_SERVICES}/{_SERVICE}")

    def _is_served(self) -> bool:
        return self._api.is_ok(f"/apis/{GROUP}/{VERSION}")


def _expect(answer: Response) -> None:
    if not answer.ok:
        raise RuntimeError(f"external metrics: the server answered {answer.status}: {answer.text}")
