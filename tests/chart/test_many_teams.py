"""docs/operate/many-teams.md: what it says the API server allows, counts and refuses. No pod runs."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
import yaml

from charts.generate import NAMESPACE, ROOT
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.contract import names
from elasticjob_operator.act.owned_kinds import rules
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher
from elasticjob_operator.plan.state.model import Job, JobSpec
from tests.chart.release import NO_POD, Release

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

PAGE = (ROOT / "docs" / "operate" / "many-teams.md").read_text()
TEAM = "team-a"
GROUPS = {
    "clusterroles": "rbac.authorization.k8s.io",
    "elasticjobs": "elasticjob.dev",
    "leases": "coordination.k8s.io",
    "rolebindings": "rbac.authorization.k8s.io",
}
"""The groups of resources that are not in the core group."""
OF_THE_CLUSTER = {"clusterroles", "nodes"}
RIGHT = re.compile(r"`(\w+) ([a-z]+)(?:/([a-z]+))?(?: ([a-z0-9-]+))?`(?: in ([a-z-]+))?")
USERS = {
    "cluster admin": "jo",
    "edit": f"system:serviceaccount:{TEAM}:edit",
    "view": f"system:serviceaccount:{TEAM}:view",
    "operator": f"system:serviceaccount:{NAMESPACE}:elasticjob",
    "a job's pod": f"system:serviceaccount:{TEAM}:mnist-elasticjob",
}
"""The users, by the columns of the table."""


def test_a_job_can_be_no_larger_than_the_cluster_allows(release: Release[Cluster]) -> None:
    """Every way to set a size is limited. A job that is larger already may stay so, and shrink."""
    release.install({**NO_POD, "watchNamespaces": ["team-a"]})
    job = _Size(release.cluster, "team-a")
    assert job.apply(replicas=5, spares=4) == ""
    own = {"namespaces": {"team-a": {"maxReplicas": 3}, "team-b": {"maxReplicas": 9}}}
    limits = {"maxReplicas": 64, "maxSpares": 1, **own}
    release.install({**NO_POD, "watchNamespaces": ["team-a"], "limits": limits})
    other = _Size(release.cluster, "team-a", "other")
    wait_for(
        lambda: "denied" in other.apply("--dry-run=server", replicas=4),
        30,
        "the policy is in force",
        interval=0.2,
    )
    assert (
        "spec.replicas is 4, and a job in team-a may have at most 3 replicas: set 3 or fewer, or ask those "
        "who run the cluster to raise limits.maxReplicas"
    ) in other.apply(replicas=4)
    assert "spec.spares is 2, and a job in team-a may have at most 1 spares" in other.apply(
        replicas=3, spares=2
    )
    assert other.apply(replicas=3, spares=1) == ""
    assert "spec.replicas is 4" in other.apply(replicas=4, spares=1)
    # Also an autoscaler's way.
    assert other.scale(4).startswith(
        'Error from server (Forbidden): elasticjobs.elasticjob.dev "other" is forbidden: '
        "ValidatingAdmissionPolicy 'elasticjob-limits' with binding 'elasticjob-limits' denied request: "
        "spec.replicas is 4, "
    )
    assert "should be greater than or equal to 1" in other.scale(0)
    assert other.scale(2) == ""
    assert other.scale(3) == ""

    assert job.apply(replicas=5, spares=4, suspend=True) == ""
    assert "spec.replicas is 6" in job.scale(6)
    assert job.scale(4) == ""
    assert "spec.replicas is 5" in job.scale(5)
    assert job.apply(replicas=4, spares=2) == ""
    assert "spec.spares is 3" in job.apply(replicas=4, spares=3)

    elsewhere = _Size(release.cluster, "team-b")  # another release may serve it, with a limit of its own
    assert elsewhere.apply(replicas=4, spares=4) == ""


def test_jobs_are_kept_as_manifests_and_come_back_suspended(release: Release[Cluster]) -> None:
    release.install({**NO_POD, "watchNamespaces": ["team-a"]})
    assert _Size(release.cluster, "team-a", "kept").apply(replicas=2) == ""
    path = f"/apis/{names.API_VERSION}/namespaces/team-a/{names.PLURAL}/kept"
    before = release.cluster.api.request("GET", path).json()
    release.words("docs/operate/backup.md", "backup")
    try:
        found = json.loads((ROOT / "build" / "elasticjobs.json").read_text())["items"]
    finally:
        for file in ("elasticjobs.json", "suspended.json"):
            (ROOT / "build" / file).unlink(missing_ok=True)
    (kept,) = [job for job in found if job["metadata"]["name"] == "kept"]
    assert kept["metadata"] == {"name": "kept", "namespace": "team-a"}
    assert "status" not in kept
    assert kept["spec"] == before["spec"]
    after = release.cluster.api.request("GET", path).json()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == {**before["spec"], "suspend": True}


class _Size:
    """A job whose size is asked for; what is returned is what is said against it."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "job") -> None:
        self._kubectl = cluster.kubectl
        self._where = ["-n", namespace]
        self._name = name

    def apply(self, *flags: str, **spec: Any) -> str:
        container = {"name": "train", "image": "a", "command": ["torchrun", "a.py"]}
        job = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": self._name},
            "spec": {**spec, "template": {"spec": {"containers": [container]}}},
        }
        words = ["apply", "--server-side", "--force-conflicts", "-f", "-", *flags]
        return self._kubectl(*self._where, *words, input=json.dumps(job), check=False).stderr

    def scale(self, replicas: int) -> str:
        words = ["scale", f"ej/{self._name}", f"--replicas={replicas}"]
        return self._kubectl(*self._where, *words, check=False).stderr


def test_who_may_do_what(release: Release[Cluster]) -> None:
    """The API server says of each cell of the table what the page says."""
    release.install(NO_POD)
    _people_and_a_job(release.cluster)
    rows = _table()
    header, *actions = rows
    assert header[2:] == list(USERS)
    may = partial(_may, release.cluster)
    # Kubernetes adds the chart's roles to its own after a moment.
    for user in ("edit", "view"):
        wait_for(partial(may, USERS[user], "`get elasticjobs`"), 30, f"{user} is aggregated")
    found = [[*row[:2], *("yes" if may(user, row[1]) else "-" for user in USERS.values())] for row in actions]
    assert found == actions
    assert len(actions) > 15


def _table() -> list[list[str]]:
    """The table of who may do what, with its heading."""
    section = PAGE.partition("\n## Who may do what\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _people_and_a_job(cluster: Cluster) -> None:
    """Bind the users of the table, and give a job's pods the rights that the operator gives them."""
    bound = ["--clusterrole=cluster-admin", "--user=jo"]
    cluster.kubectl("create", "clusterrolebinding", "jo", *bound)
    for role in ("edit", "view"):
        to = [f"--clusterrole={role}", f"--serviceaccount={TEAM}:{role}"]
        cluster.kubectl("-n", TEAM, "create", "rolebinding", role, *to)
    mnist = Job(TEAM, "mnist", "uid", 1, JobSpec(template={"spec": {}}))
    rights = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "mnist-elasticjob"},
        "rules": rules(("mnist-0-0",), LeaseRoundPublisher.reading(mnist)),
    }
    cluster.kubectl("-n", TEAM, "apply", "-f", "-", input=json.dumps(rights))
    to = ["--role=mnist-elasticjob", f"--serviceaccount={TEAM}:mnist-elasticjob"]
    cluster.kubectl("-n", TEAM, "create", "rolebinding", "mnist-elasticjob", *to)


def _may(cluster: Cluster, user: str, right: str) -> bool:
    """Whether the API server would let the user do this, in the team's namespace if none is named."""
    found = RIGHT.fullmatch(right)
    assert found, right
    verb, resource, subresource, name, namespace = found.groups()
    asked = {
        "verb": verb,
        "group": GROUPS.get(resource, ""),
        "resource": resource,
        "subresource": subresource or "",
        "name": name or "",
        "namespace": "" if resource in OF_THE_CLUSTER else namespace or TEAM,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }
    answer = cluster.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.ok, answer.text
    return bool(answer.json()["status"]["allowed"])


def test_a_quota_counts_jobs(release: Release[Cluster]) -> None:
    release.install(NO_POD)
    cluster = release.cluster
    quota = _shown("ResourceQuota")
    counted = "count/elasticjobs.elasticjob.dev"
    quota["spec"]["hard"][counted] = "1"
    cluster.kubectl("apply", "-f", "-", input=json.dumps(quota))
    # The controller that counts does not run in devcluster; the API server adds to what it has counted.
    hard = quota["spec"]["hard"]
    status = json.dumps({"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}})
    words = ["patch", "quota", "training", "--subresource=status", "--type=merge", "-p", status]
    cluster.kubectl("-n", TEAM, *words)
    try:
        assert _Size(cluster, TEAM, "first").apply(replicas=8) == ""
        refused = _Size(cluster, TEAM, "second").apply(replicas=1)
        assert (
            f"exceeded quota: training, requested: {counted}=1, used: {counted}=1, limited: {counted}=1"
            in refused
        )
    finally:
        cluster.kubectl("-n", TEAM, "delete", "quota", "training")


def test_what_the_page_shows_is_accepted(release: Release[Cluster]) -> None:
    release.install(NO_POD)
    for kind in ("ResourceQuota", "PriorityClass", "ElasticJob"):
        release.cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(_shown(kind)))
    assert (
        _shown("ElasticJob")["spec"]["template"]["spec"]["priorityClassName"]
        == _shown("PriorityClass")["metadata"]["name"]
    )


def _shown(kind: str) -> dict[str, Any]:
    """The object of that kind on the page."""
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    (found,) = (block for block in blocks if block.get("kind") == kind)
    made: dict[str, Any] = found
    return made


def test_namespaces_are_chosen_by_a_label_where_the_chart_is_installed(release: Release[Cluster]) -> None:
    release.install(NO_POD)
    with pytest.raises(AssertionError, match="no namespace has the label"):
        release.words("docs/operate/many-teams.md", "namespaces")
    try:
        for name in (TEAM, "team-b"):
            release.cluster.kubectl("label", "namespace", name, "elasticjob=served")
        release.words("docs/operate/many-teams.md", "namespaces")
        roles = release.cluster.kubectl("get", "roles", "-A", "-o", "json").stdout
        served = {
            one["metadata"]["namespace"]
            for one in json.loads(roles)["items"]
            if one["metadata"]["name"] == "elasticjob"
        }
        assert served == {TEAM, "team-b"}
    finally:
        for name in (TEAM, "team-b"):
            release.cluster.kubectl("label", "namespace", name, "elasticjob-")
