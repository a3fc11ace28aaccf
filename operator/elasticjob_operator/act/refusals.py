"""Which container a LimitRange has refused a pod for: the API server's words do not say it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from elasticjob.contract.quantity import parse
from elasticjob.contract.text import listed
from elasticjob_operator.plan.template.containers import HANDLER_CONTAINER

_SAID = r"(?:minimum|maximum) (\S+) usage per Container is"
_USAGE = re.compile(rf"{_SAID} [^,]+, but (request|limit) is ([^\s,.\]]+(?:\.\d+)?)")
_MISSING = re.compile(rf"{_SAID} [^,.]+\.\s+No (request|limit) is specified")
_RATIO = re.compile(
    r"([^\s\[]+) max limit to request ratio per Container is [^,]+, "
    r"but provided ratio is ([0-9]+(?:\.[0-9]+)?)"
)
_NEARLY = Decimal("0.00001")


def refused_containers(message: str, spec: Mapping[str, Any]) -> str:
    """A clause that names the containers of the pod's ``spec`` that the words fit; "" if they are about none,
    or fit all of several."""
    named: list[str] = []
    every = list(_containers(spec))
    for check in _checks(message):
        fits = [name for name, container in every if check(container)]
        named += fits if len(fits) < len(every) or len(every) == 1 else []
    return f" ({listed(list(dict.fromkeys(named)))})" if named else ""


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind, what in (("initContainers", "init container"), ("containers", "container")):
        for container in spec.get(kind) or ():
            name = str(container.get("name", ""))
            ours = (
                ", which the operator adds" if (kind, name) == ("initContainers", HANDLER_CONTAINER) else ""
            )
            yield f"{what} {name}{ours}", container


def _checks(message: str) -> Iterator[Callable[[Mapping[str, Any]], bool]]:
    """Yield a check for each sentence: whether a container as it was sent can have caused it. What it leaves
    out, the LimitRange may have filled in."""
    for resource, kind, value in _USAGE.findall(message):
        yield partial(_has, resource, kind, parse(value))
    for resource, kind in _MISSING.findall(message):
        yield partial(_has, resource, kind, None)
    for resource, ratio in _RATIO.findall(message):
        yield partial(_has_ratio, resource, ratio)


def _has(resource: str, kind: str, value: Decimal | None, container: Mapping[str, Any]) -> bool:
    return _of(container, resource, kind) in (None, value)


def _has_ratio(resource: str, ratio: str, container: Mapping[str, Any]) -> bool:
    request, limit = (_of(container, resource, kind) for kind in ("request", "limit"))
    try:
        return not request or limit is None or abs(limit / request - Decimal(ratio)) < _NEARLY
    except ArithmeticError:
        return True  # numbers that no Decimal can be


def _of(container: Mapping[str, Any], resource: str, kind: str) -> Decimal | None:
    """The value as the API server takes it: a limit without a request is the request, too."""
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get(resource)
    value = limit if kind == "limit" else (resources.get("requests") or {}).get(resource, limit)
    return None if value is None else parse(value)
