"""What the API server has shown of pods, those that are gone included."""

from __future__ import annotations

import json
from typing import Any

from devcluster.cluster import Cluster

_WATCHED_SECONDS = 1
"""The shortest watch that there is."""


class PodHistory:
    """The states of a namespace's pods from now on. A pod's last words are often said just before it is gone:
    only a watch has them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api = cluster.api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        answer = self._api.request("GET", self._path)
        assert answer.ok, answer
        self._version = answer.json()["metadata"]["resourceVersion"]
        self._states: dict[str, list[dict[str, Any]]] = {}
        self._gone: set[str] = set()
        self._events: list[tuple[str, str]] = []

    def states(self, pod: str) -> list[dict[str, Any]]:
        """All states of a pod, oldest first."""
        self._read()
        return self._states.get(pod, [])

    def gone(self, pod: str) -> bool:
        """Whether its object is gone."""
        self._read()
        return pod in self._gone

    def came_before_the_end_of(self, old: str, new: str) -> bool:
        """Whether the pod `new` was created while the object of the pod `old` was still there."""
        self._read()
        created, deleted = ("ADDED", new), ("DELETED", old)
        if created not in self._events:
            return False
        return deleted not in self._events or self._events.index(created) < self._events.index(deleted)

    def disruption(self, pod: str) -> dict[str, Any]:
        """The last condition DisruptionTarget that the pod had, {} if it had none."""
        found = [
            condition
            for state in self.states(pod)
            for condition in state["status"].get("conditions", [])
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True"
        ]
        return found[-1] if found else {}

    def _read(self) -> None:
        """Read what has happened since the last time."""
        watch = f"watch=1&resourceVersion={self._version}&timeoutSeconds={_WATCHED_SECONDS}"
        answer = self._api.request("GET", f"{self._path}?{watch}", timeout=30)
        assert answer.ok, answer
        for event in map(json.loads, answer.text.splitlines()):
            pod = event["object"]
            assert event["type"] in ("ADDED", "MODIFIED", "DELETED"), event
            self._version = pod["metadata"]["resourceVersion"]
            name = pod["metadata"]["name"]
            self._events.append((event["type"], name))
            self._states.setdefault(name, []).append(pod)
            if event["type"] == "DELETED":
                self._gone.add(name)
            else:
                self._gone.discard(name)
