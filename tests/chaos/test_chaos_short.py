"""The short chaos runs; ``make chaos`` is the long one (docs/internals/chaos.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from tests.chaos import kinds, peers
from tests.chaos.faults import Settings
from tests.chaos.planned import PLANNED
from tests.chaos.run import Chaos, usable
from tests.e2e.job import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

SEED = 4
SECONDS = 60.0
GAP = (8.0, 11.0)
PLANNED_SEED = 3
PLANNED_SECONDS = 7.0
PLANNED_LIMIT = 420.0
KINDS = (
    "kill a worker",
    "kill rank 0's agent",
    "cut a pod both ways",
    "kill the operator",
    "kill the API server",
    "set the round Lease back",
)
PEER_SEED = 7
PEER_GAP = (9.5, 11.0)
PEER_FAULTS = (
    "kill a worker",
    "kill the coordinator",
    "kill the coordinator and rank 0",
    "cut a pod both ways",
    "kill the API server",
    "set a run's Lease back",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_fault_after_another(devcluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The sample ids and losses are those of the undisturbed run, and nothing is left over."""
    crd.install(devcluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    failures = usable([kinds.BY_NAME[name] for name in KINDS])
    settings = Settings(SEED, SECONDS, replicas=3, minimum=2, kinds=failures, folder=tmp_path, gap=GAP)
    chaos = Chaos(settings, devcluster, namespace)
    chaos.play()
    assert chaos.faults_done.total() >= 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_fault_after_another_without_an_operator(
    devcluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The same of a run whose pods form their rounds: its coordinator is lost, too, and ends Complete."""
    failures = usable([peers.BY_NAME[name] for name in PEER_FAULTS])
    settings = Settings(
        PEER_SEED, SECONDS, replicas=3, minimum=2, kinds=failures, folder=tmp_path, gap=PEER_GAP
    )
    chaos = peers.PeerChaos(settings, devcluster, namespace)
    chaos.play()
    assert chaos.faults_done.total() >= 5
    assert chaos.faults_done["kill the coordinator"] == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_planned_changes_one_after_the_other(devcluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """With warm workers, each kind once: no step is redone, each round has stopped for its change, nothing
    has failed."""
    crd.install(devcluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    settings = Settings(
        seed=PLANNED_SEED,
        seconds=PLANNED_SECONDS,
        replicas=2,
        minimum=1,
        kinds=PLANNED,
        folder=tmp_path,
        gap=(1.0, 2.0),
        warm=True,
        limit=PLANNED_LIMIT,
    )
    chaos = Chaos(settings, devcluster, namespace)
    chaos.play()
    assert chaos.faults_done == {kind.name: 1 for kind in PLANNED}
    assert chaos.warm_starts > 1
