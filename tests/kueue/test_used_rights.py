"""The rights that the chart adds for Kueue: those of the page, and each is used by the tests of this folder.

Their file is the last one by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.chart import added_rights
from tests.kueue.stage import ON
from tests.unit.test_permissions import documented, table

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

GROUP = "kueue.x-k8s.io"


# shows: it has more rights than it needs
def test_each_right_that_kueue_adds_is_used_and_on_the_page(
    kueue: Kueue, installed: Cluster, tmp_path: Path
) -> None:
    del kueue
    added = added_rights.added(ON, tmp_path)
    assert added_rights.of_page(documented(table("Kueue"))) == added
    granted, denied = added_rights.used(installed, GROUP)
    assert granted == added
    assert denied == []
