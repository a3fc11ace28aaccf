"""docs/operate/permissions.md has every right that there is, no other; and how the audit log is compared."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from charts.generate import MANIFESTS, ROOT
from elasticjob_operator.act.owned_kinds import rules
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher
from elasticjob_operator.plan.state.model import Job, JobSpec
from tests.operator_rights import Right, Used, count, problems, rights

PAGE = (ROOT / "docs" / "operate" / "permissions.md").read_text()
USERS = frozenset({"system:serviceaccount:elasticjob-system:elasticjob"})


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def documented(rows: list[list[str]]) -> set[Right]:
    """(role, group, resource, verb) of rows whose columns are role, resource, verbs and reason."""
    found = set()
    for role, resource, verbs, why in rows:
        assert why
        name, _, group = resource.strip("`").partition(".")
        found |= {Right(role, group, name, verb) for verb in verbs.split(", ")}
    return found


# shows: it has more rights than it needs
def test_the_operators_rights_are_those_of_the_page() -> None:
    chart = {Right(right.role or "operator", right.group, right.resource, right.verb) for right in rights()}
    assert documented(table("The operator")) == chart


# shows: writes the status of a job
def test_the_users_rights_are_those_of_the_page() -> None:
    every = [one for one in yaml.safe_load_all(MANIFESTS.read_text()) if one]
    chart = {
        Right(one["metadata"]["name"].removeprefix("elasticjob-"), group, resource, verb)
        for one in every
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] in ("elasticjob-edit", "elasticjob-view")
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert documented(table("Users")) == chart


def test_the_pods_rights_are_those_of_the_page() -> None:
    job = Job("default", "mnist", "uid", 1, JobSpec(template={"spec": {}}))
    granted = rules(("mnist-0-0",), LeaseRoundPublisher.reading(job))
    names = {
        "`<job>-round`": ["mnist-round"],
        "`<job>.members-round`": ["mnist.members-round"],
        "the job's live pods": ["mnist-0-0"],
    }
    assert [
        {
            "apiGroups": [resource.strip("`").partition(".")[2]],
            "resources": [resource.strip("`").partition(".")[0]],
            "resourceNames": names[whose],
            "verbs": verbs.split(", "),
        }
        for resource, whose, verbs, _why in table("The pods of a job")
    ] == granted


def test_the_rights_of_helm_test_are_those_of_the_page() -> None:
    golden = (ROOT / "tests" / "chart" / "golden" / "default.yaml").read_text()
    (role,) = (
        one
        for one in yaml.safe_load_all(golden)
        if one and one["kind"] == "Role" and one["metadata"]["name"] == "elasticjob-test"
    )
    assert role["rules"] == [
        {
            "apiGroups": [resource.strip("`").partition(".")[2]],
            "resources": [resource.strip("`").partition(".")[0]],
            "verbs": verbs.split(", "),
            **({"resourceNames": [name.strip("`").replace("<release>", "elasticjob")]} if name else {}),
        }
        for resource, name, verbs, _why in table("The test of the chart")
    ]


# shows: it is taken over
def test_the_operator_has_no_wildcard_no_secret_and_no_way_into_pods() -> None:
    for right in rights():
        assert "*" not in (right.group, right.resource, right.verb)
        # Conditions of pods, which show nothing and start nothing, are all that it may write below them.
        assert not re.search(r"secrets|configmaps|pods/(?!status$)|/token", right.resource)
        assert right.resource != "pods/status" or right.verb == "patch"
        assert right.verb not in ("escalate", "bind", "impersonate", "deletecollection")


def event(verb: str, resource: str, code: int = 200, user: str = next(iter(USERS)), **more: Any) -> str:
    """A line of an audit log."""
    about = {"resource": resource, "namespace": "default", **more}
    return json.dumps(
        {
            "verb": verb,
            "user": {"username": user},
            "userAgent": "elasticjob-operator",
            "requestURI": f"/api/v1/{resource}?x=y",
            "objectRef": about,
            "responseStatus": {"code": code},
            "annotations": {"authorization.k8s.io/decision": "forbid" if code == 403 else "allow"},
        }
    )


def test_a_request_that_was_turned_away_unjudged_shows_no_right() -> None:
    used = Used()
    shed = json.loads(event("get", "pods", 429))
    del shed["annotations"]
    count(used, [json.dumps(shed)], USERS)
    assert used == Used()


# shows: it has more rights than it needs
def test_what_nobody_has_asked_for_and_what_was_refused_are_named() -> None:
    used = Used()
    lines = [
        event("get", "pods"),
        event("delete", "leases", apiGroup="coordination.k8s.io"),
        event("patch", "leases", apiGroup="coordination.k8s.io", name="elasticjob-operator"),
        event("patch", "elasticjobs", apiGroup="elasticjob.dev", subresource="status"),
        event("list", "secrets", 403),
        event("patch", "pods", 403),
        event("list", "configmaps", 403, user="system:serviceaccount:default:default"),
        event("patch", "roles", 201, apiGroup="rbac.authorization.k8s.io"),
        event("get", "pods")[:-30],
    ]
    count(used, lines, USERS)
    assert set(used.granted) == {
        Right("", "", "pods", "get"),
        Right("", "coordination.k8s.io", "leases", "delete"),
        Right("leader-election", "coordination.k8s.io", "leases", "patch"),
        Right("", "elasticjob.dev", "elasticjobs/status", "patch"),
        Right("", "rbac.authorization.k8s.io", "roles", "patch"),
        Right("", "rbac.authorization.k8s.io", "roles", "create"),
    }
    given = {*used.granted, Right("", "", "pods", "patch")} - {Right("", "", "pods", "get")}
    assert list(problems(given, used)) == [
        "never used: patch pods",  # it was refused, by a server that had not read its roles yet
        "used, and not in deploy/operator.yaml: get pods",
        "refused: list secrets (1 times)",
    ]
