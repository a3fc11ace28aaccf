"""The rights that the chart adds for Kueue: those of the page, and each is used by the tests of this folder.

Their file is the last one by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from charts.generate import NAMESPACE
from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.chart.helm import Helm, objects
from tests.kueue.conftest import ON
from tests.operator_rights import Right, Used, count
from tests.unit.test_permissions import documented, table

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

GROUP = "kueue.x-k8s.io"


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
def test_each_right_that_kueue_adds_is_used_and_on_the_page(
    kueue: Kueue, installed: Cluster, tmp_path: Path
) -> None:
    del kueue
    helm = Helm(tmp_path)
    added = rights(helm, ON) - rights(helm, {})
    page = documented(table("Kueue"))
    assert {Right("", right.group, right.resource, right.verb) for right in page} == added
    used = Used()
    for log in installed.audit_logs:
        with log.open() as lines:
            count(used, lines, frozenset({f"system:serviceaccount:{NAMESPACE}:elasticjob"}))
    assert {right for right in used.granted if right.group == GROUP} == added
    assert [right for right in used.denied if right.group == GROUP] == []
