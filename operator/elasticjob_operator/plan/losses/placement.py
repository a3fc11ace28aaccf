"""Which nodes a template names, so that its pods can run on these alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticjob.contract.lenient import mapping, mappings

HOSTNAME_LABEL = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def nodes_left(template: Mapping[str, Any] | None, avoided: Iterable[str]) -> frozenset[str] | None:
    """The nodes that the template names, without those to avoid; None if it names none, so that any may do.

    A node's hostname label is its name, but for some clouds; there nothing is left too early, and the node is
    tried again.
    """
    named = _named(mapping(mapping(template).get("spec")))
    return None if named is None else named - frozenset(avoided)


def _named(spec: Mapping[str, Any]) -> frozenset[str] | None:
    """The nodes named by ``nodeName``, by the selector, or in every alternative of the affinity."""
    if spec.get("nodeName"):
        return frozenset({str(spec["nodeName"])})
    selected = mapping(spec.get("nodeSelector")).get(HOSTNAME_LABEL)
    if selected:
        return frozenset({str(selected)})
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    terms = [_of_term(term) for term in mappings(mapping(affinity.get(_REQUIRED)).get("nodeSelectorTerms"))]
    found: frozenset[str] = frozenset()
    for names in terms:
        if names is None:
            return None
        found |= names
    return found if terms else None


def _of_term(term: Mapping[str, Any]) -> frozenset[str] | None:
    found: frozenset[str] | None = None
    for names in (*_in(term, "matchFields", "metadata.name"), *_in(term, "matchExpressions", HOSTNAME_LABEL)):
        found = names if found is None else found & names
    return found


def _in(term: Mapping[str, Any], kind: str, key: str) -> Iterator[frozenset[str]]:
    for one in mappings(term.get(kind)):
        values = one.get("values")
        if one.get("key") == key and one.get("operator") == "In" and isinstance(values, list):
            yield frozenset(map(str, values))
