"""A job in a cluster, as tests make it and read it, whatever runs in its pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from devcluster.access import ClusterAccess
from devcluster.wait import wait_for
from elasticjob.contract.names import API_VERSION, JOB_LABEL, KIND, PLURAL


class ClusterJob:
    """One ElasticJob. ``deadline``: seconds after which a wait has hung."""

    cluster: ClusterAccess
    deadline = 60.0

    def __init__(self, cluster: ClusterAccess, namespace: str, name: str = "job") -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.name = name
        self.labels: dict[str, str] = {}
        self.resources: dict[str, Any] = {}
        """Of the container that trains."""

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """What kubectl prints, called for the job's namespace."""
        timeout = self.deadline + 10
        return self.cluster.kubectl("-n", self.namespace, *args, input=input, timeout=timeout).stdout

    # -- making it -----------------------------------------------------------------------------------------

    def create(self, body: dict[str, Any]) -> None:
        """Apply any manifest in the job's namespace."""
        self.kubectl("apply", "-f", "-", input=json.dumps(body))

    def create_job(
        self,
        container: dict[str, Any] | None = None,
        annotations: dict[str, str] | None = None,
        pod: dict[str, Any] | None = None,
        sidecars: Sequence[dict[str, Any]] = (),
        **spec: Any,
    ) -> None:
        """Apply the job; with ``container`` it has a template, into which the other parameters go."""
        if container is not None:
            image: dict[str, Any] = {"name": "train", "image": "elasticjob-test"}
            if self.resources:
                image = {**image, "resources": self.resources}
            template = {
                "metadata": {"annotations": annotations or {}},
                "spec": {"containers": [{**image, **container}, *sidecars], **(pod or {})},
            }
            spec = {"replicas": 2, "handlerSource": "Image", "template": template, **spec}
        meta = {"name": self.name, "namespace": self.namespace, "labels": self.labels}
        self.create({"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})

    def patch(self, **spec: Any) -> None:
        """Change fields of the spec."""
        self.kubectl("patch", PLURAL, self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def scale(self, replicas: int) -> None:
        """kubectl scale."""
        self.kubectl("scale", f"{PLURAL}/{self.name}", f"--replicas={replicas}")

    def delete(self, *flags: str) -> None:
        """kubectl delete."""
        self.kubectl("delete", PLURAL, self.name, *flags)

    # -- reading it ----------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """The object, {} when it is gone."""
        return self.cluster.read(f"/apis/{API_VERSION}/namespaces/{self.namespace}/{PLURAL}/{self.name}")

    def status(self) -> dict[str, Any]:
        """Its status, {} before the first."""
        found: dict[str, Any] = self.get().get("status", {})
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition, {} if it is not there."""
        found = (c for c in self.status().get("conditions", []) if c["type"] == kind)
        return next(found, {})

    def pods(self) -> dict[str, dict[str, Any]]:
        """The job's pods by name, also those on their way out."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={JOB_LABEL}={self.name}"
        return {p["metadata"]["name"]: p for p in self.cluster.read(path)["items"]}

    def events(self, reason: str) -> list[str]:
        """What the operator's Events of one reason say about the job, in no order."""
        return [
            event["message"]
            for event in self.cluster.read(f"/api/v1/namespaces/{self.namespace}/events")["items"]
            if event["reason"] == reason and event["involvedObject"]["name"] == self.name
        ]

    def told(self, reason: str) -> list[str]:
        """The same, once there is one: Events are sent a moment after what they tell of."""
        return list(self.wait_for(lambda: self.events(reason), f"an Event {reason}"))

    def wait_for(self, predicate: Callable[[], Any], message: str, seconds: float | None = None) -> Any:
        """Wait; the message of a failure tells the state of the job."""
        try:
            return wait_for(predicate, seconds or self.deadline, message, interval=0.1)
        except TimeoutError as error:
            status = json.dumps({k: v for k, v in self.status().items() if k != "accounts"}, indent=1)
            raise AssertionError(f"{error}\n{status[:6000]}") from None

    def complete(self, seconds: float | None = None) -> None:
        """Wait until the job is Complete; it must not fail."""

        def ended() -> str | None:
            found = (kind for kind in ("Complete", "Failed") if self.condition(kind).get("status") == "True")
            return next(found, None)

        assert self.wait_for(ended, "Complete", seconds) == "Complete", self.condition("Failed")

    def says(self, text: str) -> str:
        """Wait until the sentence of Training contains this; returns it."""
        self.wait_for(lambda: text in self.condition("Training").get("message", ""), f"it says {text!r}")
        return str(self.condition("Training")["message"])
