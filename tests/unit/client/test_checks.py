"""What doctor concludes, and how a run ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from elasticjob_client.explain.checks import NEEDED, Lead, leading_operator, rights, unseen, version
from elasticjob_client.explain.why import exit_status
from tests.unit.client.made import NOW, after_a_loss, job


def test_an_operator_that_leads() -> None:
    check = leading_operator(
        [Lead(name="elasticjob", holder="pod-a", renewed=NOW - timedelta(seconds=2))], "system", NOW
    )
    assert (check.result, check.found) == ("ok", "pod-a leads, renewed 2s ago")


def test_an_operator_that_is_gone() -> None:
    check = leading_operator(
        [Lead(name="elasticjob", holder="pod-a", renewed=NOW - timedelta(hours=1))], "system", NOW
    )
    assert check.result == "failed"
    assert check.found == "no operator leads: the Lease system/elasticjob was renewed 1h ago"
    assert check.advice
    assert leading_operator([], "system", NOW).result == "failed"


def test_rights_that_are_missing_are_named() -> None:
    allowed = {right: True for needed in NEEDED.values() for right in needed}
    assert {check.result for check in rights(allowed, "research")} == {"ok"}
    allowed["get", "pods/log"] = False
    (missing,) = [check for check in rights(allowed, "research") if check.result != "ok"]
    assert (missing.subject, missing.found) == ("read logs", "no right in namespace research to get pods/log")


def test_run_needs_all_that_it_may_do_with_its_config_map() -> None:
    """It replaces what an earlier run has left, gives the map to the job, and takes it away if that fails."""
    (needed,) = [rights for what, rights in NEEDED.items() if "elasticjob run" in what]
    verbs = {verb for verb, resource in needed if resource == "configmaps"}
    assert verbs == {"create", "get", "update", "patch", "delete"}


def test_jobs_that_wait_for_an_operator() -> None:
    assert unseen([after_a_loss()], NOW).result == "ok"
    check = unseen([after_a_loss(), job(None)], NOW)
    assert (check.result, check.found) == ("failed", "no operator has looked at mnist")
    assert unseen([job(None, managedBy="kueue.x-k8s.io/multikueue")], NOW).result == "ok"


def test_versions() -> None:
    assert version("registry:5000/operator:0.1.0", "0.1.0").result == "ok"
    assert version("registry:5000/operator:0.2.0", "0.1.0").found == "the operator is 0.2.0, the client 0.1.0"
    for image in ("registry:5000/operator", "operator@sha256:0123"):
        check = version(image, "0.1.0")
        assert (check.result, "helm list" in check.advice) == ("unknown", True)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"terminalState": "Complete"}, 0),
        ({"terminalState": "Failed", "lastFailure": {"exitCode": 3}}, 3),
        ({"terminalState": "Failed", "lastFailure": {"exitCode": -9}}, 137),
        ({"terminalState": "Failed", "lastFailure": {"exitCode": 0}}, 1),
        ({"terminalState": "Failed"}, 1),
    ],
)
def test_the_exit_code_is_that_of_the_job(status: dict[str, Any], code: int) -> None:
    assert exit_status(job(status)) == code
