"""What tools that judge any resource by kstatus (Flux, Helm, kpt) make of a job."""

from __future__ import annotations

from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.status import JobStatus
from tests.scenarios.world import World


def kstatus(status: JobStatus, generation: int) -> str:
    """The rules of cli-utils/pkg/kstatus for a resource of a kind that it does not know."""
    if status.observed_generation != generation:
        return "InProgress"
    if status.is_true("Stalled"):
        return "Failed"
    return "InProgress" if status.is_true("Reconciling") else "Current"


def judged(w: World) -> tuple[str, str]:
    """By kstatus, and the reason."""
    found = w.status.condition("Reconciling")
    assert found is not None
    return kstatus(w.status, w.job.generation), found.reason


def test_a_job_that_shall_train_and_does_not_is_in_progress() -> None:
    w = World().play("job replicas=2")
    assert judged(w) == ("InProgress", "WaitingForPods")
    assert judged(w.play("start mnist-0-0 mnist-1-0")) == ("InProgress", "Establishing")
    assert judged(w.play("establish")) == ("Current", "Training")
    assert judged(w.play("exit mnist-0-0 1"))[0] == "InProgress", "between two rounds"


def test_a_suspended_job_is_as_it_shall_be_once_its_pods_are_gone() -> None:
    w = World().play("job replicas=2", "start mnist-0-0 mnist-1-0", "establish", "suspend")
    assert judged(w) == ("InProgress", "Suspending")
    assert judged(w.play("gone mnist-0-0 mnist-1-0")) == ("Current", "Suspended")
    assert judged(w.play("resume"))[0] == "InProgress"


def test_a_failed_job_has_failed_and_a_complete_one_is_current() -> None:
    w = World().play(
        "job replicas=2", "limit application 0", "start mnist-0-0 mnist-1-0", "establish", "fail mnist-0-0"
    )
    w.play("fail mnist-0-0", "fail mnist-1-0")
    assert w.status.is_true("Failed")
    stalled, failed = w.status.condition("Stalled"), w.status.condition("Failed")
    assert stalled is not None
    assert failed is not None
    assert (kstatus(w.status, w.job.generation), stalled.reason) == ("Failed", failed.reason)
    w = World().play(
        "job replicas=2", "start mnist-0-0 mnist-1-0", "establish", "succeed mnist-0-0 mnist-1-0"
    )
    w.play("exit mnist-0-0 0", "exit mnist-1-0 0")
    assert w.status.is_true("Complete")
    assert judged(w) == ("Current", "Complete")


def test_a_job_that_no_operator_has_seen_is_in_progress() -> None:
    """The definition's default: without it an object without status would count as Current."""
    assert status_json.parse({"observedGeneration": -1}) == JobStatus()
    assert kstatus(JobStatus(), 1) == "InProgress"
