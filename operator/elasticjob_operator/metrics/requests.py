"""How a request to the API server is named in metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_RESOURCES = frozenset(
    {
        *("elasticjobs", "elasticjobs/status", "pods", "leases", "nodes", "events", "serviceaccounts"),
        *("roles", "rolebindings", "networkpolicies"),
    }
)
OTHER = "other"
NO_ANSWER = "none"


def verb_and_resource(method: str, path: str, query: Mapping[str, str]) -> tuple[str, str]:
    """The verb and the resource in the words of Kubernetes, such as ("patch", "elasticjobs/status").

    >>> verb_and_resource("PATCH", "/apis/elasticjob.dev/v1alpha1/namespaces/a/elasticjobs/b/status", {})
    ('patch', 'elasticjobs/status')
    >>> verb_and_resource("GET", "/api/v1/pods", {"watch": "1"})
    ('watch', 'pods')
    """
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[:1] == ["api"] else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    resource = "/".join(rest[::2])
    if method != "GET":
        verb = _VERBS.get(method, OTHER)
    elif query.get("watch"):
        verb = "watch"
    else:
        verb = "get" if len(rest) > 1 else "list"
    return verb, resource if resource in _RESOURCES else OTHER
