"""What a value of the chart adds to the operator's rights, and which of a group its account has used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from charts.generate import NAMESPACE
from devcluster.cluster import Cluster
from tests import operator_account
from tests.chart.helm import Helm, objects
from tests.operator_rights import Right, Used, count

_KINDS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def give(cluster: Cluster, values: dict[str, Any], folder: Path) -> None:
    """Give the operator's account what the chart gives it with these values. ``folder`` is helm's."""
    operator_account.config(cluster)
    rendered = objects(Helm(folder).template(values))
    given = [one for one in rendered if one["kind"] in _KINDS and not _is_hook(one)]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(given))


def added(values: dict[str, Any], folder: Path) -> set[Right]:
    """What the chart gives the operator with these values, and not without. ``folder`` is helm's."""
    helm = Helm(folder)
    return _rights(helm, values) - _rights(helm, {})


def of_page(rows: set[Right]) -> set[Right]:
    """The rows of a table of the page, wherever they hold."""
    return {Right("", right.group, right.resource, right.verb) for right in rows}


def used(cluster: Cluster, group: str) -> tuple[set[Right], list[Right]]:
    """What the operator's account was granted and denied so far, by the API server's audit logs."""
    found = Used()
    for log in cluster.audit_logs:
        with log.open() as lines:
            count(found, lines, frozenset({f"system:serviceaccount:{NAMESPACE}:elasticjob"}))
    granted = {right for right in found.granted if right.group == group}
    return granted, [right for right in found.denied if right.group == group]


def _rights(helm: Helm, values: dict[str, Any]) -> set[Right]:
    return {
        Right("", group, resource, verb)
        for one in objects(helm.template(values))
        if one["kind"] == "ClusterRole" and not one["metadata"]["name"].endswith(("-edit", "-view"))
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _is_hook(one: dict[str, Any]) -> bool:
    return "helm.sh/hook" in (one["metadata"].get("annotations") or {})
