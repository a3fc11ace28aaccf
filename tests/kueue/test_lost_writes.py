"""Of the operator's writes of Workloads some do not arrive, and of some no answer comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import PlayedJob
from tests.kueue.losing_operator import LOST, NOT_SENT
from tests.kueue.queued_job import all_run, apply
from tests.kueue.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


@pytest.fixture
def operator(kueue: Kueue, installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """One that loses writes, in place of the folder's."""
    del kueue
    module, log = "tests.kueue.losing_operator", tmp_path / "operator.log"
    with Operator(installed, namespace, log, flags=["--kueue"], module=module) as running:
        yield running


def test_lost_writes_leak_no_quota_and_give_none_away(
    stage: Stage, played: PlayedJob, operator: Operator
) -> None:
    apply(stage, played)
    all_run(played)
    played.wait_for(lambda: stage.used("a") == 4, "the quota of 4 pods is used")
    for pods in (1, 3):
        stage.ask("urgent", "a", pods, priority=500)
        played.wait_for(lambda: stage.admitted("urgent"), "the other is admitted", 120)
        assert len(played.pods()) <= 4 - pods
        stage.withdraw("urgent")
        all_run(played)
    played.delete()
    played.wait_for(lambda: not stage.of_job(played), "no Workload is left", 120)
    played.wait_for(lambda: stage.used("a") == 0, "no quota is used")
    assert not played.pods()
    said = operator.log.read_text()
    assert said.count(LOST) >= 2, said
    assert said.count(NOT_SENT) >= 2, said
