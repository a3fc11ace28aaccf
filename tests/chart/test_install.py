"""From `helm install` to a trained model and back, in the words of README.md and pages of docs/operate.

The operator runs in pods. Each test has a devcluster of its own: the chart's objects are the cluster's, and
its policy would judge other tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import elasticjob
from charts.generate import NAMESPACE
from devcluster.cluster import Cluster
from devcluster.commands import DEPLOYMENTS, DISRUPTION, Options
from devcluster.wait import wait_for
from elasticjob_operator.act.injection import IMAGE_DIR
from tests import operator_account
from tests.chart.release import REGISTRY, Release
from tests.dockerfile import Build
from tests.docs_commands import ROOT
from tests.e2e.job import JobRun
from tests.e2e.test_client import said as said_as_json

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.devcluster,
    pytest.mark.root,  # pods need volumes and networks of their own
    pytest.mark.timeout(600),
]

CRD = "elasticjobs.elasticjob.dev"
ONE_POD: dict[str, Any] = {"replicaCount": 1, "leaderElection": {"enabled": False}}


@pytest.fixture
def release(tmp_path: Path, handler_image: Build) -> Iterator[Release[Cluster]]:
    """A cluster in which nothing is installed. Each pod has a network of its own, as in any cluster: the
    operator's pods listen on the same port."""
    options = Options(further_controllers=(*DEPLOYMENTS, DISRUPTION), netns=True)
    with Cluster(nodes=2, options=options) as cluster:
        cluster.kubectl("create", "namespace", "team-a")
        image = f"{REGISTRY}/elasticjob-handler:{elasticjob.__version__}"
        cluster.add_image(image, "/usr/bin", {IMAGE_DIR: handler_image.home / "site"})
        # Who is uninstalled is refused what it still asks for.
        operator_account.watch(cluster, denials=False)
        made = Release(cluster, tmp_path / "helm")
        yield made
        print(made.state()[-8000:])


def test_jobs_train_through_the_life_of_a_release(release: Release[Cluster], tmp_path: Path) -> None:
    kubectl = release.cluster.kubectl
    release.words("docs/operate/install.md", "namespace")
    before = release.everything()

    # From the first command to a job that is Complete.
    said = release.words("README.md", "install")
    installed = release.everything()
    pods = json.loads(kubectl("get", "pods", "-o", "json").stdout)["items"]
    assert {pod["metadata"]["name"] for pod in pods} == {"first-0-0", "first-1-0"}
    images = {pod["spec"]["initContainers"][0]["image"] for pod in pods}
    assert images == {f"{REGISTRY}/elasticjob-handler:{elasticjob.__version__}"}
    assert "step 100: loss 0.0" in said, "what the script printed"
    first = release.operators()
    assert {pod["spec"]["nodeName"] for pod in first.values()} == {"node-a", "node-b"}

    # So does the chart's own test, which leaves nothing behind.
    assert "Phase:          Succeeded" in release.words("docs/operate/install.md", "helm-test")
    assert not [name for name in release.everything().keys() - installed.keys() if "-test" in name]

    # The next steps that helm prints work, too.
    manifest = re.search(r"^kubectl apply -f - <<EOF\n(.*?)^EOF$", said, re.MULTILINE | re.DOTALL)
    assert manifest is not None, said
    assert "my-job created" in kubectl("apply", "--dry-run=server", "-f", "-", input=manifest[1]).stdout

    # A second one trains from here to the end, and none of its pods may be lost.
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply(failurePolicy={"infrastructure": {"maxRestarts": 0}})
    number = job.training(1, members=2)["number"]
    uids = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}

    # The policy is in force: the pods of a job share their rights, but none writes another's Lease.
    refusal = _writes_lease(release, "job-0-0", "job-1-0")
    assert "belongs to the pod of that name, and this is the token of pod job-0-0" in refusal
    assert _writes_lease(release, "job-0-0", "job-0-0") == ""

    # Nothing is wrong with the installation, and the loss of the operator that leads costs the job nothing.
    checks = said_as_json(job, "doctor")["items"]
    assert {check["result"] for check in checks} == {"ok"}, checks
    assert {"operator", "versions", "jobs"} <= {check["subject"] for check in checks}
    leader = release.leader()
    cost = said_as_json(job, "drill", job.name, "--kill", "operator", "--yes")
    print("\n".join(cost["sentences"]))
    assert (cost["killed"], cost["roundWentOn"]) == ([leader], True)
    assert cost["leader"] == release.leader()
    first = release.operators()
    job.goes_on(number)

    # An upgrade brings new pods, and what is new in the definition.
    assert _crd(release)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    _forget_a_column(release)
    release.words("docs/operate/upgrades.md", "upgrade")
    release.words("docs/operate/install.md", "change")
    second = release.operators()
    assert not first.keys() & second.keys()
    assert all(_logs_json(pod) for pod in second.values())
    assert _columns(_crd(release)) == _columns(yaml.safe_load((ROOT / "crds" / f"{CRD}.yaml").read_text()))
    job.goes_on(number)

    release.words("docs/operate/upgrades.md", "rollback")
    third = release.operators()
    assert not second.keys() & third.keys()
    assert not any(_logs_json(pod) for pod in third.values())
    job.goes_on(number)

    budget = kubectl("-n", NAMESPACE, "get", "pdb", "elasticjob", "-o", "json").stdout
    assert json.loads(budget)["status"]["disruptionsAllowed"] == 1

    # A cluster without any definition of others takes the dashboard.
    release.words("docs/operate/dashboard.md", "enable")
    shown = ("get", "configmap", "-l", "grafana_dashboard=1", "-o", "json")
    (dashboard,) = json.loads(kubectl("-n", NAMESPACE, *shown).stdout)["items"]
    assert json.loads(dashboard["data"]["elasticjob.json"])["title"] == "ElasticJob"
    job.goes_on(number)

    # Nothing of the release is left but the definition, which its jobs need.
    assert release.refused() == set()  # before its rights are taken away
    assert "kept due to the resource policy" in release.words("docs/operate/install.md", "uninstall")
    made = installed.keys() - before.keys()
    assert {
        "Deployment/elasticjob-system/elasticjob",
        "PodDisruptionBudget/elasticjob-system/elasticjob",
    } < made
    of_jobs = {"ElasticJob", "Pod"}
    kept = {f"CustomResourceDefinition//{CRD}", "APIService//v1alpha1.elasticjob.dev"}

    def left() -> set[str]:
        return {
            name
            for name, one in release.everything().items()
            if name not in before
            and one["kind"] != "ElasticJob"
            # A job's, a job's pod's, the user's.
            and {owner["kind"] for owner in one["metadata"].get("ownerReferences", [])}.isdisjoint(of_jobs)
            and name != "ConfigMap/default/first-job"
        }

    wait_for(lambda: left() == kept, 60, lambda: f"only the definition is left: {left()}", interval=0.5)
    job.goes_on(number)

    # The job trains to its end with no operator; to say so takes one.
    job.stop()
    job.wait_for(
        lambda: {pod["status"]["phase"] for pod in job.pods().values()} == {"Succeeded"},
        "its pods have succeeded",
    )
    assert job.condition("Training")["status"] == "True"
    assert job.condition("Complete")["status"] == "False"
    assert job.round()["number"] == number
    release.words("README.md", "install")
    job.complete()
    assert {name: pod["metadata"]["uid"] for name, pod in job.pods().items()} == uids
    assert [past["number"] for past in job.rounds()] == [number]


@pytest.mark.slow
def test_with_namespaces_and_no_cluster_wide_right(release: Release[Cluster], tmp_path: Path) -> None:
    release.words("docs/operate/install.md", "namespace")
    for namespace in (NAMESPACE, "team-a"):
        to = ["--clusterrole=admin", "--user=jo"]
        release.cluster.kubectl("-n", namespace, "create", "rolebinding", "jo", *to)
    release.words("docs/operate/install.md", "watch-namespaces-administrator", INSTALLER="jo")
    before = release.everything().keys()
    release.words("docs/operate/install.md", "watch-namespaces", HELM_KUBEASUSER="jo")
    assert {name.split("/")[1] for name in release.everything().keys() - before} == {NAMESPACE, "team-a"}
    elsewhere = JobRun(release.cluster, "default", tmp_path / "elsewhere")
    elsewhere.apply()
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply()
    job.training(1, members=2)
    job.stop()
    job.complete()
    assert elsewhere.status() == {"observedGeneration": -1}  # the default: nothing has looked at it
    # It asks whether it may see nodes, and does without.
    assert release.refused() == {("list", "nodes")}


@pytest.mark.slow
def test_manifests_without_helm(release: Release[Cluster], tmp_path: Path) -> None:
    release.words("docs/operate/install.md", "without-helm")
    release.operators()
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply()
    number = job.training(1, members=2)["number"]
    assert release.refused() == set()
    release.words("docs/operate/install.md", "without-helm-uninstall")
    job.goes_on(number)
    release.words("docs/operate/install.md", "delete-all")
    assert job.pods() == {}


@pytest.mark.slow
def test_one_operator_without_leader_election(release: Release[Cluster], tmp_path: Path) -> None:
    release.words("docs/operate/install.md", "namespace")
    release.install(ONE_POD)
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply()
    number = job.training(1, members=2)["number"]
    release.install({**ONE_POD, "logging": {"level": "debug"}})  # the old one ends before the new one begins
    release.operators(1)
    job.goes_on(number)
    job.scale(3)
    job.training(number + 1, members=3)
    assert release.refused() == set()


def _writes_lease(release: Release[Cluster], pod: str, lease: str) -> str:
    """Ask to write a Lease of the job with the token of one of its pods; returns what was said against it."""
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"]
    kubectl = release.cluster.kubectl
    token = kubectl("-n", "team-a", "create", "token", "job-elasticjob", *bound).stdout.strip()
    patch = json.dumps({"metadata": {"annotations": {"example.com/written-by": pod}}})
    # Without an account: a kubeconfig with the administrator's token would win over the flag.
    return kubectl(
        *("-n", "team-a", "patch", "lease", lease, "--type=merge", "-p", patch, "--dry-run=server"),
        *("--kubeconfig=/dev/null", f"--server={release.cluster.server}", f"--token={token}"),
        f"--certificate-authority={release.cluster.ca_file}",
        check=False,
    ).stderr


def _logs_json(pod: dict[str, Any]) -> bool:
    return "--log-format=json" in pod["spec"]["containers"][0]["args"]


def _crd(release: Release[Cluster]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(release.cluster.kubectl("get", "crd", CRD, "-o", "json").stdout)
    return found


def _columns(crd: dict[str, Any]) -> list[str]:
    return [one["name"] for one in crd["spec"]["versions"][0]["additionalPrinterColumns"]]


def _forget_a_column(release: Release[Cluster]) -> None:
    """Make the definition an older one."""
    before = _columns(_crd(release))
    patch = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/1"}]
    release.cluster.kubectl("patch", "crd", CRD, "--type=json", "-p", json.dumps(patch))
    assert _columns(_crd(release)) != before
