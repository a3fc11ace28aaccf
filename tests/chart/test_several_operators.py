"""Several operators in one cluster, each by a release of its own, as the document tells."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from charts.generate import NAMESPACE
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.commands import DEPLOYMENTS, Options
from devcluster.wait import wait_for
from tests.chart.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

_OF_SECOND = ("-l", "app.kubernetes.io/instance=elasticjob-b")
_POLICIES_READ_SECONDS = 3.0
"""The API server looks once a second which policies there are."""


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release[Cluster]]:
    """A cluster of its own: an API server that has seen the last leader-only policy go enforces no later one
    (kubernetes/kubernetes#130887)."""
    with Cluster(nodes=0, options=Options(further_controllers=DEPLOYMENTS)) as cluster:
        for name in (NAMESPACE, "team-a", "team-b"):
            cluster.kubectl("create", "namespace", name)
        yield Release(cluster, tmp_path)


class Share:
    """A release and the namespace that it serves. Its pods exist, and no operator runs in them."""

    def __init__(self, release: Release[Cluster], name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self._cluster = release.cluster
        self.leader = self.standby = ""

    def elect(self) -> None:
        """Let one of its pods lead."""
        wait_for(lambda: len(self._pods()) == 2, 60, f"{self.name} has its pods", interval=0.2)
        self.leader, self.standby = self._pods()
        held = json.dumps({"spec": {"holderIdentity": f"{self.leader}_1"}})
        self._cluster.kubectl("-n", NAMESPACE, "patch", "lease", self.name, "--type=merge", "-p", held)

    def enforced(self) -> None:
        """Wait until its policy is in force, which takes the API server a moment."""

        def found() -> str:
            return f"the policy of {self.name} refuses its standby; found {self._refusal_of_standby()!r}"

        wait_for(lambda: "does not lead" in self._refusal_of_standby(), 60, found, interval=0.2)

    def refusal(self, pod: str, namespace: str) -> str:
        """What is said against a write of that pod for a job in the namespace."""
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"]
        token = self._cluster.kubectl("-n", NAMESPACE, "create", "token", self.name, *bound).stdout.strip()
        account = {"name": "mnist-elasticjob", "labels": {"elasticjob.dev/job-name": "mnist"}}
        answer = ApiClient(self._cluster.server, self._cluster.ca_file, token).request(
            "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts?dryRun=All", {"metadata": account}
        )
        return "" if answer.ok else str(answer.json()["message"])

    def _refusal_of_standby(self) -> str:
        return self.refusal(self.standby, self.namespace)

    def _pods(self) -> list[str]:
        of_release = ["-l", f"app.kubernetes.io/instance={self.name}"]
        found = self._cluster.kubectl("-n", NAMESPACE, "get", "pods", *of_release, "-o", "json").stdout
        names = (pod["metadata"] for pod in json.loads(found)["items"])
        return [meta["name"] for meta in names if "deletionTimestamp" not in meta]


def test_two_releases_share_the_namespaces_of_a_cluster(release: Release[Cluster]) -> None:
    """Each has an election, a policy and rights of its own, and neither can write what is the other's."""
    release.words("docs/operate/scale.md", "two-operators")
    first, second = Share(release, "elasticjob-a", "team-a"), Share(release, "elasticjob-b", "team-b")
    for one in (first, second):
        one.elect()
    for one, other in ((first, second), (second, first)):
        one.enforced()
        assert one.refusal(one.leader, one.namespace) == ""
        assert f'in the namespace "{other.namespace}"' in one.refusal(one.leader, other.namespace)

    # One that goes and comes back finds its policy enforced, because the other kept the Leases followed.
    where = ["--namespace", NAMESPACE]
    values = yaml.safe_load(release.helm.run("get", "values", second.name, *where).stdout.partition("\n")[2])
    release.helm.run("uninstall", second.name, *where, "--wait")
    release.cluster.kubectl(*("-n", NAMESPACE, "delete", "pods", "--force", "--grace-period=0"), *_OF_SECOND)
    time.sleep(_POLICIES_READ_SECONDS)
    chart = str(release.helm.chart)
    release.helm.run("install", second.name, chart, *where, "-f", release.helm.values_file(values))
    second.elect()
    second.enforced()
    assert second.refusal(second.leader, second.namespace) == ""
