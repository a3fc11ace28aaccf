"""doctor JOB: a job that cannot start is not all right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from elasticjob_client.explain.state import state
from elasticjob_client.explain.template import checks
from elasticjob_client.resource import ElasticJob
from tests.unit.client.made import NOW, after_a_loss, conditions, job, pod
from tests.unit.client.server import JOBS, Server, refusal
from tests.unit.client.test_template import made, told

Run = Callable[..., Result]

DENIED = "0 of 2 pods have joined; mnist-0-0: cannot be created: quota exceeded"
EARLY = "mnist-0-0 ended before it joined: exit code 1"
SILENT = "0 of 2; mnist-0-0 has run for 60 s and has not joined; see its log"


def waiting(message: str, **status: Any) -> ElasticJob:
    return job({"conditions": conditions("WaitingForPods", message), **status})


@pytest.mark.parametrize(
    ("found", "result", "said"),
    [
        (after_a_loss(), "ok", "Training: round 2 with 2 members"),
        (job({"conditions": conditions("Suspended", "suspended")}), "ok", "Suspended"),
        (waiting("0 of 2 pods have joined"), "unknown", "WaitingForPods: 0 of 2"),
        (waiting(DENIED), "failed", "cannot be created: quota exceeded"),
        (waiting(f"0 of 2; {EARLY}", lastFailure={"message": EARLY}), "failed", EARLY),
        (waiting("0 of 2", lastFailure={"message": EARLY}), "unknown", "0 of 2"),
        (waiting(SILENT), "failed", "has not joined"),
        (
            job(
                {
                    "conditions": conditions("Failed", "x", ("NeverJoined", "no pod")),
                    "terminalState": "Failed",
                }
            ),
            "failed",
            "Failed: NeverJoined: no pod",
        ),
        (job(None), "failed", "no operator has looked at mnist"),
        (job({}), "failed", "no operator has looked at mnist"),
        (job(None, managedBy="kueue.x-k8s.io/multikueue"), "unknown", "leaves this job to kueue"),
    ],
)
def test_the_state(found: ElasticJob, result: str, said: str) -> None:
    check = state(found, [], NOW)
    assert (check.subject, check.result) == ("state", result), check
    assert said in check.found
    assert bool(check.advice) == (result != "ok")


def test_a_job_of_this_moment_is_not_judged() -> None:
    young = ElasticJob.from_dict({**job(None).to_dict(), "metadata": {"name": "mnist"}})
    assert (state(young, [], NOW).result, state(young, [], NOW).advice) == (
        "unknown",
        "try again in a few seconds",
    )


@pytest.mark.parametrize("image", ["", " ", "a b", None])
def test_an_image_that_names_none(image: str | None) -> None:
    found = checks(made(image=image), [])
    assert told(found, "image").result == "failed"
    assert not [check for check in found if check.subject in ("python", "torch")]


def test_an_image_that_no_pod_has_is_not_ok() -> None:
    check = told(checks(made(), [pod("mnist-0-0", "Pending"), pod("mnist-1-0", "Pending")]), "image")
    assert (check.result, check.found) == ("unknown", "pytorch/pytorch:2.6.0 is pulled for 0 of 2 pods")
    assert told(checks(made(), []), "image").result == "unknown"


def test_doctor_of_a_job_that_no_operator_serves_looks_for_one(server: Server, run: Run) -> None:
    del server.answers[f"{JOBS}/mnist"]["status"]
    leases = "/apis/coordination.k8s.io/v1/namespaces/elasticjob-system/leases"
    server.answers[leases] = {"metadata": {}, "items": []}
    deployments = "/apis/apps/v1/namespaces/elasticjob-system/deployments"
    server.answers[deployments] = refusal(403, "Forbidden", "no")
    result = run("doctor", "mnist", "-o", "json")
    assert result.exit_code == 1, result.exception
    found = json.loads(result.stdout)["items"]
    assert [one["subject"] for one in found[:2]] == ["state", "operator"]
    assert "no Lease of an operator in namespace elasticjob-system" in found[1]["found"]
