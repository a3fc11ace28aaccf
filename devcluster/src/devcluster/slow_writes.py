"""Slow writes, done by the API server itself: a validating webhook that takes its time.

The delay is in the write's own path, as a slow etcd or a user's slow admission webhook would be; reads and
watches go on undisturbed. Namespaces are chosen by a label, so nothing outside of them is touched, node
Leases in kube-node-lease and everything in kube-system least of all.

An API server learns of a webhook, and of a namespace's label, through watches, a fraction of a second late.
So the webhook is installed with no delay, then each API server is probed until it asks it, and only then is
the delay set, which is immediate. At the end the delay goes first.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from devcluster.api import ApiClient, Response
from devcluster.wait import wait_for
from devcluster.webhook import PROBE_NAME, PROBE_WARNING

LABEL = "devcluster/slow-writes"
"""On a namespace, with the value `true`: its writes are slowed while a `slow_writes` block is open."""

MAX_SECONDS = 29.0
"""The API server waits 30 s for a webhook at most; this one it would then ignore."""

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_NAME = "devcluster-slow-writes"
_IN_FORCE_TIMEOUT_SECONDS = 30.0


class SlowWrites:
    """The delay of the writes of one cluster. Made by `Cluster.slow_writes`."""

    def __init__(self, api: ApiClient, control: ApiClient, url: str, ca_file: Path) -> None:
        self._api = api
        self._control = control
        self._url = url
        self._ca_bundle = base64.b64encode(ca_file.read_bytes()).decode()

    def set_delay(self, seconds: float) -> None:
        """Make writes that begin from now on take `seconds` longer (0 to 29).

        Raises ValueError for a time that the API server would not wait.
        """
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"a write can be slowed by 0 to {MAX_SECONDS:g} s, not by {seconds:g}")
        _expect(self._control.request("PUT", "/delay", {"seconds": seconds}))

    @contextlib.contextmanager
    def in_force(
        self, servers: Sequence[ApiClient], namespaces: Collection[str], resources: Collection[str]
    ) -> Iterator[None]:
        """Have all `servers` ask the webhook about writes in `namespaces`, with no delay as yet."""
        self.set_delay(0.0)
        _expect(self._api.request("POST", _CONFIGURATIONS, self._configuration(resources)))
        try:
            for name in namespaces:
                self._set_label(name, "true")
            for name, server in itertools.product(namespaces, servers):
                _wait_in_force(name, server)
            yield
        finally:
            # The API server may be frozen or gone, and with it the configuration's effect: first the delay.
            self.set_delay(0.0)
            self._api.request("DELETE", f"{_CONFIGURATIONS}/{_NAME}")
            for name in namespaces:
                self._set_label(name, None)

    def _configuration(self, resources: Collection[str]) -> dict[str, object]:
        def rule(names: Collection[str]) -> dict[str, object]:
            return {
                "apiGroups": ["*"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": sorted(names),
                "scope": "Namespaced",
            }

        webhook = {
            "name": "slow-writes.devcluster.internal",
            "clientConfig": {"url": f"{self._url}/", "caBundle": self._ca_bundle},
            "rules": [rule(resources), rule(["configmaps"])],
            "matchConditions": [
                {
                    "name": "of-configmaps-only-the-probe",
                    "expression": "request.resource.resource != 'configmaps' || "
                    f"request.name == '{PROBE_NAME}'",
                }
            ],
            "namespaceSelector": {"matchLabels": {LABEL: "true"}},
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "timeoutSeconds": 30,
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": _NAME},
            "webhooks": [webhook],
        }

    def _set_label(self, namespace: str, value: str | None) -> None:
        answer = self._api.request(
            "PATCH",
            f"/api/v1/namespaces/{namespace}",
            {"metadata": {"labels": {LABEL: value}}},
            content_type="application/merge-patch+json",
        )
        if value is not None:
            _expect(answer)


def _wait_in_force(namespace: str, server: ApiClient) -> None:
    wait_for(
        lambda: _is_asked(server, namespace),
        _IN_FORCE_TIMEOUT_SECONDS,
        f"writes in {namespace} are slowed",
    )


def _is_asked(server: ApiClient, namespace: str) -> bool:
    """Whether this API server asks the webhook about writes in this namespace."""
    answer = server.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROBE_NAME}},
    )
    return PROBE_WARNING in answer.headers.get("Warning", "")


def _expect(answer: Response) -> None:
    if not answer.ok:
        raise RuntimeError(f"slow_writes: the server answered {answer.status}: {answer.text}")
