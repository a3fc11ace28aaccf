"""What a run without an operator says where it may not do what it needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticjob.agent import messages
from elasticjob.agent.peer_messages import UNKNOWN_ACCOUNT
from elasticjob.agent.settings import Settings
from elasticjob.core.participant import Stop

ROOT = Path(__file__).parents[3]
RIGHTS = ROOT / "examples" / "without-an-operator" / "rights.yaml"
PAGE = ROOT / "docs" / "use" / "without-an-operator.md"
SETTINGS = Settings(namespace="research", job="mnist", rounds="peers", pod="mnist-0")
FORBIDDEN = (
    'cannot list Leases: 403 leases.coordination.k8s.io is forbidden: User "system:serviceaccount:{}" cannot '
    'list resource "leases" in API group "coordination.k8s.io" in the namespace "research"'
)


def handed_over(error: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Role and the RoleBinding in what torchrun ends with."""
    said = messages.forbidden(SETTINGS, error, 11)
    role, binding = yaml.safe_load_all(said[said.index("apiVersion:") :])
    return role, binding


def test_the_manifest_is_that_of_the_example_with_its_own_names() -> None:
    role, binding = handed_over(FORBIDDEN.format("research:trainer"))
    _, examples_role, examples_binding = yaml.safe_load_all(RIGHTS.read_text())
    assert role["rules"] == examples_role["rules"]
    assert binding["roleRef"] == examples_binding["roleRef"]
    for ours, examples in ((role, examples_role), (binding, examples_binding)):
        assert (ours["apiVersion"], ours["kind"]) == (examples["apiVersion"], examples["kind"])
        assert ours["metadata"] == {"name": examples["metadata"]["name"], "namespace": "research"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "trainer", "namespace": "research"}]


def test_the_page_gives_the_role_and_the_binding_of_the_example() -> None:
    _, _, manifest = RIGHTS.read_text().partition("---\n")
    assert f"```yaml\n{manifest}```" in PAGE.read_text()


def test_the_account_may_be_of_another_namespace() -> None:
    """A kubeconfig may have it. Names are text, also if they look like a number or true."""
    role, binding = handed_over(FORBIDDEN.format("007:true"))
    assert role["metadata"]["namespace"] == "research"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "true", "namespace": "007"}]


def test_a_person_leaves_the_name_open() -> None:
    _, binding = handed_over('leases is forbidden: User "ada" cannot list resource "leases"')
    assert binding["subjects"][0]["name"] == UNKNOWN_ACCOUNT


@pytest.mark.parametrize(("account", "warned"), [("default", True), ("trainer", False)])
def test_the_account_that_all_pods_share_is_not_the_one_to_grant_it_to(account: str, warned: bool) -> None:
    said = messages.forbidden(SETTINGS, FORBIDDEN.format(f"research:{account}"), 11)
    assert ("better give these pods one of their own" in said) == warned


def test_where_a_policy_refuses_no_role_is_asked_for() -> None:
    error = "leases \"a\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"
    said = messages.forbidden(SETTINGS, error, 11)
    assert error in said
    assert "An admission policy or webhook" in said
    assert "kind: Role" not in said


QUOTA = (
    'leases.coordination.k8s.io "mnist-0" is forbidden: exceeded quota: objects, requested: '
    "count/leases.coordination.k8s.io=1, used: count/leases.coordination.k8s.io=20, limited: "
    "count/leases.coordination.k8s.io=20"
)
REFUSED = {
    "quota": QUOTA,
    "namespace": 'leases.coordination.k8s.io "mnist-0" is forbidden: unable to create new content in '
    "namespace research because it is being terminated",
    "proxy": "403 Forbidden",
}


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED.keys())
def test_where_no_right_is_missing_no_role_is_asked_for(error: str) -> None:
    """The API server says 403 to these, too."""
    said = messages.forbidden(SETTINGS, error, 11)
    assert error in said
    assert "kind: Role" not in said
    assert ("needs one Lease for itself and one for each pod" in said) == (error == QUOTA)
    job = replace(SETTINGS, rounds="operator")
    for said in (messages.forbidden(job, error, 11), messages.not_granted(job, error, 11)):
        assert error in said
        assert "Role" not in said.replace("a Role would not help", "")
        assert "grant" not in said
    assert ("A Lease is needed for each pod" in messages.forbidden(job, error, 11)) == (error == QUOTA)


@pytest.mark.parametrize("complete", [True, False])
def test_one_that_comes_after_the_end_of_its_run_is_told_what_another_run_needs(complete: bool) -> None:
    """A second torchrun in one container, with the id of the first, trains nothing."""
    stop, settings = Stop(complete, "all members have succeeded"), replace(SETTINGS, job_uid="run-1")
    job = f"the job {'is complete' if complete else 'has failed'}: all members have succeeded"
    said = f"{job}. Run run-1 of mnist is over"
    assert messages.over(settings, stop, trained=True) == f"{said}: another run needs another --rdzv-id"
    late = messages.over(settings, stop, trained=False)
    assert late == f"{said}, and this torchrun has trained nothing: another run needs another --rdzv-id"
    assert messages.over(replace(settings, rounds="operator"), stop, trained=False) == job
