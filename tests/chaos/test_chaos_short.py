"""The short chaos run of ``make test``; ``make chaos`` is the long one (docs/internals/chaos.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from tests.chaos import faults
from tests.chaos.run import Chaos, Settings, usable
from tests.e2e.job import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

SEED = 4
SECONDS = 60.0
GAP = (8.0, 11.0)
KINDS = (
    "kill a worker",
    "kill rank 0's agent",
    "cut a pod both ways",
    "kill the operator",
    "kill the API server",
    "set the round Lease back",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_fault_after_another(devcluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The sample ids and losses are those of the undisturbed run, and nothing is left over."""
    crd.install(devcluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    kinds = usable([faults.BY_NAME[name] for name in KINDS])
    settings = Settings(SEED, SECONDS, replicas=3, minimum=2, kinds=kinds, folder=tmp_path, gap=GAP)
    chaos = Chaos(settings, devcluster, namespace)
    chaos.play()
    assert chaos.faults_done >= 5
