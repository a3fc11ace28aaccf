"""The rights that the chart adds for PodGroups: those of the page. The tests of this folder use each of them.

Their file is the last one by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from charts.generate import NAMESPACE
from devcluster.cluster import Cluster
from tests.chart.helm import Helm, objects
from tests.gang.conftest import ON
from tests.operator_rights import Right, Used, count
from tests.unit.test_permissions import documented, table

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

GROUP = "scheduling.k8s.io"


def rights(helm: Helm, values: dict[str, Any]) -> set[Right]:
    """What the chart gives the operator with these values."""
    return {
        Right("", group, resource, verb)
        for one in objects(helm.template(values))
        if one["kind"] == "ClusterRole" and not one["metadata"]["name"].endswith(("-edit", "-view"))
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


# shows: it has more rights than it needs
def test_each_right_that_pod_groups_add_is_used_and_on_the_page(
    rights_given: None, installed: Cluster, tmp_path: Path
) -> None:
    del rights_given
    helm = Helm(tmp_path)
    added = rights(helm, ON) - rights(helm, {})
    page = documented(table("Gang scheduling"))
    assert {Right("", right.group, right.resource, right.verb) for right in page} == added
    used = Used()
    for log in installed.audit_logs:
        with log.open() as lines:
            count(used, lines, frozenset({f"system:serviceaccount:{NAMESPACE}:elasticjob"}))
    needed = {right for right in added if right.verb != "delete" or installed.kubernetes.startswith("1.36")}
    assert {right for right in used.granted if right.group == GROUP} == needed
    assert [right for right in used.denied if right.group == GROUP] == []
