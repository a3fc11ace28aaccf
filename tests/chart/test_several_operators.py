"""Several operators in one cluster, each by a release of its own, as the document tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from charts.generate import NAMESPACE
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.commands import DEPLOYMENTS, Options
from devcluster.wait import wait_for
from tests.chart.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release[Cluster]]:
    """A cluster of its own: an API server that has seen the last leader-only policy go enforces no later one
    (kubernetes/kubernetes#130887)."""
    with Cluster(nodes=0, options=Options(further_controllers=DEPLOYMENTS)) as cluster:
        for name in (NAMESPACE, "team-a", "team-b"):
            cluster.kubectl("create", "namespace", name)
        yield Release(cluster, tmp_path)


def test_two_releases_share_the_namespaces_of_a_cluster(release: Release[Cluster]) -> None:
    """Each has an election, a policy and rights of its own, and neither can write what is the other's."""
    release.words("docs/operate/scale.md", "two-operators")
    kubectl = release.cluster.kubectl

    def operators(name: str) -> list[str]:
        selector = f"app.kubernetes.io/instance={name}"
        answer = kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "name")
        return [pod.removeprefix("pod/") for pod in answer.stdout.split()]

    def elect(name: str) -> tuple[str, str]:
        """Let one of its operators lead; returns that one, and one that stands by."""
        wait_for(lambda: len(operators(name)) == 2, 60, f"{name} has its pods", interval=0.2)
        leader, standby = operators(name)
        held = json.dumps({"spec": {"holderIdentity": f"{leader}_1"}})
        kubectl("-n", NAMESPACE, "patch", "lease", name, "--type=merge", "-p", held)
        return leader, standby

    def refusal(name: str, pod: str, namespace: str) -> str:
        """What is said against a write of that operator of the release for a job in the namespace."""
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"]
        token = kubectl("-n", NAMESPACE, "create", "token", name, *bound).stdout.strip()
        account = {"name": "mnist-elasticjob", "labels": {"elasticjob.dev/job-name": "mnist"}}
        answer = ApiClient(release.cluster.server, release.cluster.ca_file, token).request(
            "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts?dryRun=All", {"metadata": account}
        )
        return "" if answer.ok else str(answer.json()["message"])

    def enforced(name: str, standby: str, own: str) -> None:
        """The API server takes a new policy over within a moment."""

        def found() -> str:
            return f"the policy of {name} refuses its standby; found {refusal(name, standby, own)!r}"

        wait_for(lambda: "does not lead" in refusal(name, standby, own), 60, found, interval=0.2)

    shares = {"elasticjob-a": "team-a", "elasticjob-b": "team-b"}
    elected = {name: elect(name) for name in shares}
    for name, own in shares.items():
        leader, standby = elected[name]
        (other,) = set(shares.values()) - {own}
        enforced(name, standby, own)
        assert refusal(name, leader, own) == ""
        assert f'in the namespace "{other}"' in refusal(name, leader, other)
