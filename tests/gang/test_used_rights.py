"""The rights that the chart adds for PodGroups: those of the page. The tests of this folder use each of them.

Their file is the last one by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from tests.chart import added_rights
from tests.gang.conftest import ON
from tests.gang.gangs import ALL, Gang
from tests.unit.test_permissions import documented, table

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


# shows: it has more rights than it needs
@pytest.mark.parametrize("gang", ALL, ids=lambda gang: gang.name)
def test_each_right_that_pod_groups_add_is_used_and_on_the_page(
    rights_given: None, installed: Cluster, tmp_path: Path, gang: Gang
) -> None:
    del rights_given
    value = gang.name.lower()
    added = added_rights.added({"gangScheduling": {value: ON["gangScheduling"][value]}}, tmp_path)
    group = gang.versions[0].partition("/")[0]
    page = added_rights.of_page(documented(table("Gang scheduling")))
    assert {right for right in page if right.group == group} == added
    granted, denied = added_rights.used(installed, group)
    needed = {right for right in added if right.verb != "delete" or installed.kubernetes.startswith("1.36")}
    assert granted == needed
    assert denied == []
