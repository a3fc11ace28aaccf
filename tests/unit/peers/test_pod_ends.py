"""What a pod's status proves about the agent in it: only what holds for each of its containers (P3)."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.coordination.reading import ended_well, pod_end, taken_away

NAMED = {"kubectl.kubernetes.io/default-container": "first"}
RUNS: dict[str, Any] = {"running": {}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def pod(phase: str = "Running", annotations: dict[str, str] | None = None, **states: Any) -> dict[str, Any]:
    """Its containers and their states; None: it has no status yet."""
    return {
        "metadata": {"name": "pod-0", "annotations": annotations or {}},
        "spec": {"containers": [{"name": name} for name in states]},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": n, "state": s} for n, s in states.items() if s is not None],
        },
    }


@pytest.mark.parametrize("annotations", [{}, NAMED])
@pytest.mark.parametrize("other", [RUNS, {"waiting": {}}, None])
def test_a_helper_that_ends_before_the_trainer_is_no_proof(annotations: dict[str, str], other: Any) -> None:
    """A container that an injector puts in front, and names as the default one, too."""
    assert pod_end(pod(annotations=annotations, first=ended(0), trainer=other)) == ""
    assert pod_end(pod(annotations=annotations, first=ended(1), trainer=other)) == ""


def test_a_pod_has_ended_when_all_its_containers_have_or_its_phase_says_so() -> None:
    assert "exit code 137" in pod_end(pod(trainer=ended(137)))
    assert "exit code 1" in pod_end(pod(helper=ended(0), trainer=ended(1)))
    assert pod_end(pod("Failed")) == "its pod has failed"
    assert pod_end(pod("Succeeded", trainer=RUNS)) == "its pod has succeeded"
    assert pod_end(pod(trainer=RUNS)) == ""
    assert pod_end(pod("Pending")) == ""
    assert pod_end({"metadata": {}}) == ""


def test_a_pod_has_ended_well_when_all_its_containers_have() -> None:
    assert ended_well(pod("Succeeded"))
    assert ended_well(pod(helper=ended(0), trainer=ended(0)))
    assert not ended_well(pod(helper=ended(0), trainer=ended(1)))
    assert not ended_well(pod(helper=ended(0), trainer=RUNS))
    assert not ended_well(pod("Failed", trainer=ended(0)))


def disrupted(body: dict[str, Any], status: str = "True") -> dict[str, Any]:
    """It is evicted or preempted, as the API server says."""
    condition = {"type": "DisruptionTarget", "status": status, "reason": "EvictionByEvictionAPI"}
    body["status"]["conditions"] = [{"type": "Ready", "status": "False"}, condition]
    return body


def deleted(body: dict[str, Any]) -> dict[str, Any]:
    """It has its grace period before it."""
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return body


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_pod_that_was_told_to_end_has_not_ended_well_whatever_its_exit_code(phase: str) -> None:
    """A wrapper that traps SIGTERM ends with 0."""
    for told in (deleted, disrupted):
        body = told(pod(phase, trainer=ended(0)))
        assert pod_end(body)
        assert taken_away(body)
        assert not ended_well(body)
    assert ended_well(disrupted(pod(phase, trainer=ended(0)), status="False"))


def test_a_pod_that_runs_is_taken_away_when_it_is_deleted_and_not_by_the_condition_alone() -> None:
    """A preemption that was planned may not come."""
    assert taken_away(deleted(pod(trainer=RUNS)))
    assert not taken_away(disrupted(pod(trainer=RUNS)))
    assert not taken_away(pod("Failed"))
    assert not taken_away({})
