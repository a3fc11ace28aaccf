"""Whether a node is one of those that a pod requires. Beside the scheduler, kubelet asks this of each pod
that it is given: ``nodeName`` in a pod goes around the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devcluster.nodeagent.api import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def requires_nodes(spec: Object) -> bool:
    """Whether a pod with this ``spec`` may not run on every node."""
    return bool(spec.get("nodeSelector")) or _terms(spec) is not None


def may_run(spec: Object, name: str, labels: Mapping[str, str]) -> bool:
    """Whether the selector and one term of the required affinity match this node."""
    selected = all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())
    terms = _terms(spec)
    return selected and (terms is None or any(_term_matches(term, name, labels) for term in terms))


def _terms(spec: Object) -> Sequence[Object] | None:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    return None if required is None else required["nodeSelectorTerms"]


def _term_matches(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    judged = [_matches(one, labels) for one in term.get("matchExpressions") or []]
    judged += [_matches(one, {"metadata.name": name}) for one in term.get("matchFields") or []]
    return bool(judged) and all(judged)


def _matches(expression: Object, given: Mapping[str, str]) -> bool:
    value, values = given.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or not value.lstrip("-").isdecimal():
        return False
    return int(value) > int(values[0]) if expression["operator"] == "Gt" else int(value) < int(values[0])
