"""What `helm test` runs in a pod, with a played API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticjob.api.errors import ApiError, Conflict, Forbidden, NotFound, Unavailable
from elasticjob_operator.helm_test import DELETION_SECONDS, PATIENCE_SECONDS, Trial

JOB = {"metadata": {"namespace": "elasticjob-system", "name": "elasticjob-test"}}
NEW: dict[str, Any] = {"observedGeneration": -1}


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


WAITS = {"conditions": [condition("Training", "False", "WaitingForPods", "0/2 nodes\nhave room")]}
DONE = {"terminalState": "Complete", "conditions": [condition("Training", "False", "Complete", "all ended")]}
FAILED = {
    "terminalState": "Failed",
    "conditions": [
        condition("Training", "False", "Failed", "the job has failed"),
        condition("Failed", "True", "ApplicationRestartsExhausted", "0 restarts are allowed"),
    ],
    "lastFailure": {"podName": "elasticjob-test-0-0", "exitCode": 1, "message": "No module\nnamed 'torch'"},
}


@dataclass
class World:
    """A cluster with at most one job. ``statuses`` follow one another; the last one stays.

    ``errors`` come first, each for one request. ``stays``: what is deleted does not go.
    """

    statuses: list[dict[str, Any]]
    errors: list[ApiError] = field(default_factory=list)
    exists: bool = False
    stays: bool = False
    created: int = 0
    time: float = 0.0
    told: list[str] = field(default_factory=list)

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def create(self, job: Mapping[str, Any]) -> None:
        self._fail()
        assert not self.exists
        assert job is JOB
        self.exists = True
        self.created += 1

    def read(self) -> dict[str, Any]:
        self._fail()
        if not self.exists:
            raise NotFound("gone", 404)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return {"status": status}

    def delete(self) -> None:
        self._fail()
        if not self.exists:
            raise NotFound("gone", 404)
        self.exists = self.stays

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def run(self, seconds: float = 60.0) -> bool:
        return Trial(self, JOB, seconds, lambda: self.time, self.sleep, self.told.append).run()


def test_a_job_that_becomes_complete_is_told_of_and_deleted() -> None:
    world = World([NEW, WAITS, WAITS, DONE])
    assert world.run()
    assert world.told == [
        "ElasticJob elasticjob-system/elasticjob-test is created",
        "no operator has looked at the job yet: does one serve its namespace?",
        "Training False, WaitingForPods: 0/2 nodes have room",
        "Training False, Complete: all ended",
        "elasticjob-system/elasticjob-test is Complete after 6 s",
    ]
    assert not world.exists


def test_what_an_interrupted_test_has_left_is_no_result() -> None:
    world = World([DONE], exists=True)
    assert world.run()
    assert world.created == 1


def test_a_failure_is_told_with_all_that_the_status_says() -> None:
    world = World([WAITS, FAILED])
    assert not world.run()
    assert world.told[-4:] == [
        "elasticjob-system/elasticjob-test is Failed",
        "  Training False, Failed: the job has failed",
        "  Failed True, ApplicationRestartsExhausted: 0 restarts are allowed",
        "  last failure: pod elasticjob-test-0-0, exit code 1: No module named 'torch'",
    ]
    assert not world.exists


def test_a_job_that_takes_too_long_is_told_with_what_it_waits_for() -> None:
    world = World([WAITS])
    assert not world.run(seconds=10)
    assert world.told[-2:] == [
        "elasticjob-system/elasticjob-test is not over after 10 s",
        "  Training False, WaitingForPods: 0/2 nodes have room",
    ]
    assert not world.exists


def test_rights_that_come_a_moment_later_and_an_answer_that_was_lost_are_no_failure() -> None:
    world = World([DONE], [Forbidden("may not", 403), NotFound("gone", 404), Unavailable("no answer")])
    assert world.run()
    lost = World([DONE], [NotFound("gone", 404), Conflict("exists", 409)], exists=True)
    assert lost.run()


def test_what_the_api_server_refuses_is_said_in_its_words() -> None:
    never: list[ApiError] = [Forbidden("elasticjobs is forbidden", 403) for _ in range(100)]
    world = World([DONE], never)
    assert not world.run()
    assert "the API server refused: elasticjobs is forbidden" in world.told
    assert PATIENCE_SECONDS < world.time < 3 * PATIENCE_SECONDS
    invalid = World([DONE], [NotFound("gone", 404), ApiError("spec.replicas: Invalid value", 422)])
    assert not invalid.run()
    assert invalid.told[0] == "the API server refused: spec.replicas: Invalid value"


def test_a_job_that_cannot_be_deleted_is_named() -> None:
    world = World([DONE], stays=True)
    assert world.run()
    assert world.told[-1] == (
        "elasticjob-system/elasticjob-test is not deleted: it still exists 120 s after its deletion"
    )
    assert world.time >= DELETION_SECONDS
