"""The rights that the chart adds for PodGroups: those of the page. The tests of this folder use each of them.

Their file is the last one by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from tests.chart import added_rights
from tests.gang.conftest import ON
from tests.unit.test_permissions import documented, table

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

GROUP = "scheduling.k8s.io"


# shows: it has more rights than it needs
def test_each_right_that_pod_groups_add_is_used_and_on_the_page(
    rights_given: None, installed: Cluster, tmp_path: Path
) -> None:
    del rights_given
    added = added_rights.added(ON, tmp_path)
    assert added_rights.of_page(documented(table("Gang scheduling"))) == added
    granted, denied = added_rights.used(installed, GROUP)
    needed = {right for right in added if right.verb != "delete" or installed.kubernetes.startswith("1.36")}
    assert granted == needed
    assert denied == []
