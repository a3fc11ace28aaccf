"""An administrator deletes the definition of Workloads, and installs it again: what queued jobs do."""

from __future__ import annotations

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import PlayedJob
from tests.kueue.queued_job import all_run, apply, submit
from tests.kueue.stage import DEADLINE, Stage, labels

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

DEFINITION = "workloads.kueue.x-k8s.io"


def test_jobs_stop_when_workloads_are_abolished_and_queue_again_when_they_are_back(
    stage: Stage, played: PlayedJob, operator: Operator, kueue: Kueue, installed: Cluster
) -> None:
    """With their definition Kubernetes deletes all Workloads. The finalizer holds that up until no pod uses
    their quota."""
    waiting = PlayedJob(installed, played.namespace, "waiting")
    played.labels = labels("a", stage.priority_class(100))
    apply(stage, played)
    first = all_run(played)
    submit(waiting, replicas=1, minReplicas=1)
    waiting.says("waiting for queue a to admit 1 pod")
    unlabelled = PlayedJob(installed, played.namespace, "unlabelled")
    unlabelled.apply(replicas=1)
    (other,) = all_run(unlabelled, 1)
    try:
        installed.kubectl("delete", "crd", DEFINITION, f"--timeout={DEADLINE:.0f}s")
        assert not played.pods(), "the definition is not gone before they are"
        for job in (played, waiting):
            job.says("queue a cannot be asked: the operator cannot list workloads of kueue.x-k8s.io/v1beta2")
            assert job.condition("Training")["reason"] == "Queued"
        assert list(unlabelled.pods()) == [other]
    finally:
        kueue.component.stop()
        kueue.install()
        installed.kubectl("wait", f"crd/{DEFINITION}", "--for=condition=Established", "--timeout=60s")
        kueue.component.start()
    operator.kill()
    operator.restart()  # or wait for six minutes
    assert not set(first) & set(all_run(played))
    waiting.says("waiting for queue a to admit 1 pod")
    played.wait_for(lambda: stage.used("a") == 4, "the quota of 4 pods is used")
