"""Everything of one kind that a label selects: listed, then watched. And what else a run without operator
asks the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.api.connection import Connection
from elasticjob.api.errors import ApiError, NotFound, Unavailable
from elasticjob.api.leases import HttpLeaseApi, Lease, read_body, read_lease
from elasticjob.contract import names


@dataclass(frozen=True)
class Change:
    """An object is new or has changed, or was ``deleted`` and was like this."""

    body: Mapping[str, Any]
    deleted: bool = False


class HttpListApi(HttpLeaseApi):
    """``LeaseApi``, and lists. One watch at a time."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        super().__init__(connection, namespace)
        self._pods = f"{connection.base}/api/v1/namespaces/{namespace}/pods"
        self._group = f"{connection.base}/apis/{names.GROUP}"

    def create(self, lease: Mapping[str, Any]) -> Lease:
        """Make a Lease. Raises Conflict if there is one, and other ApiErrors."""
        headers = {"content-type": "application/json"}
        return read_lease(read_body(self._request("POST", self._base, headers, json.dumps(lease).encode())))

    def follow_leases(self, label: str, value: str) -> Iterator[list[Mapping[str, Any]] | Change | None]:
        """The Leases with this label: all at first, then each change; None for a sign of life without one.
        Ends when the server ends the watch; raises ApiError."""
        return self._follow(
            f"{self._base}?labelSelector={_selector(label, value)}", f"Leases with {label}={value}"
        )

    def follow_pods(self, label: str, value: str) -> Iterator[list[Mapping[str, Any]] | Change | None]:
        """The pods with this label, as ``follow_leases``."""
        return self._follow(
            f"{self._pods}?labelSelector={_selector(label, value)}", f"pods with {label}={value}"
        )

    def follow_pod(self, name: str) -> Iterator[list[Mapping[str, Any]] | Change | None]:
        """The pod of this name, as ``follow_leases``."""
        return self._follow(f"{self._pods}?fieldSelector=metadata.name%3D{name}", f"pod {name}")

    def has_resource(self) -> bool:
        """Whether the API server has ElasticJobs at all: all who are authenticated may ask. Raises
        ApiError."""
        try:
            self._request("GET", self._group)
        except NotFound:
            return False
        return True

    def _follow(self, url: str, what: str) -> Iterator[list[Mapping[str, Any]] | Change | None]:
        listed = read_body(self._request("GET", url))
        try:
            items, version = list(listed.get("items") or ()), str(listed["metadata"]["resourceVersion"])
        except (KeyError, TypeError):
            raise Unavailable(f"list of {what}: the answer is no list") from None
        yield items
        for line in self._watch_lines(f"{url}&resourceVersion={version}", what):
            yield _change(what, line) if line else None


def _selector(label: str, value: str) -> str:
    return f"{label.replace('/', '%2F')}%3D{value}"


def _change(what: str, line: bytes) -> Change | None:
    try:
        event = json.loads(line)
        kind, body = event["type"], event["object"]
        assert isinstance(body, dict)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise Unavailable(f"watch of {what}: an event cannot be read") from None
    if kind == "ERROR":
        raise ApiError(f"watch of {what}: {body.get('message', '')}")
    return Change(body, kind == "DELETED") if kind in ("ADDED", "MODIFIED", "DELETED") else None
