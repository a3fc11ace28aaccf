"""What the API server makes of the chart's objects, without a pod."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import elasticjob
from charts import generate
from charts.generate import NAMESPACE
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.go_tool import module_source
from devcluster.wait import wait_for
from tests.chart.helm import VALUES, Helm, objects
from tests.chart.release import NO_POD, Release

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

CRD = "elasticjobs.elasticjob.dev"


DEFINED_ELSEWHERE = {"others-make-the-roles", "prometheus-operator"}
"""What needs objects that others make."""


@pytest.mark.parametrize("name", [name for name in VALUES if name not in DEFINED_ELSEWHERE])
def test_server_accepts_everything_and_warns_of_nothing(
    cluster_without_nodes: Cluster, helm: Helm, name: str
) -> None:
    made = helm.template(VALUES[name])
    _make_test_account(cluster_without_nodes, made)
    said = cluster_without_nodes.kubectl("apply", "--dry-run=server", "-f", "-", input=made)
    assert "deployment.apps/elasticjob" in said.stdout
    assert said.stderr == ""


def test_server_accepts_the_manifests_and_warns_of_nothing(cluster_without_nodes: Cluster) -> None:
    files = ["-f", str(generate.ROOT / "crds"), "-f", str(generate.MANIFESTS)]
    said = cluster_without_nodes.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", *files
    )
    assert "deployment.apps/elasticjob serverside-applied" in said.stdout
    assert said.stderr == ""


def test_a_pod_that_is_not_restricted_would_be_warned_of(cluster_without_nodes: Cluster, helm: Helm) -> None:
    made = helm.template({"podSecurityContext": None})
    _make_test_account(cluster_without_nodes, made)
    said = cluster_without_nodes.kubectl("apply", "--dry-run=server", "-f", "-", input=made, check=False)
    assert 'would violate PodSecurity "restricted' in said.stderr
    assert 'pods "elasticjob-test" is forbidden: violates PodSecurity' in said.stderr


def test_the_pods_that_helm_test_trains_with_are_restricted(
    cluster_without_nodes: Cluster, helm: Helm
) -> None:
    """The operator's init container is, too (tests/integration/test_injection.py)."""
    (pod,) = (one for one in objects(helm.template({})) if one["kind"] == "Pod")
    job = json.loads(pod["spec"]["containers"][0]["args"][0])
    assert job["metadata"]["namespace"] == NAMESPACE
    trains = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": NAMESPACE}}
    trains["spec"] = {**job["spec"]["template"]["spec"], "serviceAccountName": "elasticjob-test"}
    _make_test_account(cluster_without_nodes, helm.template({}))
    said = cluster_without_nodes.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(trains))
    assert said.stdout == "pod/train created (server dry run)\n"


def _make_test_account(cluster: Cluster, rendered: str) -> None:
    """Create the account of `helm test`: a pod is not accepted without its account, not even in a dry run."""
    for one in objects(rendered):
        if one["kind"] == "ServiceAccount" and one["metadata"]["name"].endswith("-test"):
            cluster.kubectl("apply", "-f", "-", input=json.dumps(one))


@pytest.fixture(scope="module")
def prometheus_operator(cluster_without_nodes: Cluster) -> Cluster:
    """The cluster with the definitions of the Prometheus operator, from its own Go module."""
    module = module_source("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
    for plural in ("servicemonitors", "podmonitors", "prometheusrules"):
        file = module / "example" / "prometheus-operator-crd" / f"monitoring.coreos.com_{plural}.yaml"
        cluster_without_nodes.kubectl("apply", "--server-side", "-f", str(file))
        name = f"crd/{plural}.monitoring.coreos.com"
        cluster_without_nodes.kubectl("wait", "--for=condition=Established", name, "--timeout=60s")
    return cluster_without_nodes


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_the_prometheus_operator_accepts_monitors_and_alerts(
    prometheus_operator: Cluster, helm: Helm, kind: str
) -> None:
    values = copy.deepcopy(VALUES["prometheus-operator"])
    values["metrics"][kind] = values["metrics"].pop("podMonitor")
    made = [one for one in objects(helm.template(values)) if one["apiVersion"].startswith("monitoring.")]

    def apply() -> Any:
        words = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"]
        return prometheus_operator.kubectl(*words, input=yaml.safe_dump_all(made), check=False)

    said = apply()
    accepted = {line.rpartition("/")[0] for line in said.stdout.splitlines()}
    assert accepted == {f"{kind.lower()}.monitoring.coreos.com", "prometheusrule.monitoring.coreos.com"}
    assert said.stderr == ""

    # A field that its definition does not have would be found.
    (monitor,) = (one for one in made if one["kind"].lower() == kind.lower())
    (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    endpoint["intervals"] = endpoint.pop("interval")
    assert "unknown field" in apply().stderr


def test_packed_chart_installs_what_the_folder_does(release: Release[Cluster]) -> None:
    release.words("docs/operate/install.md", "package")
    release.helm.chart = generate.ROOT / "build" / f"elasticjob-{elasticjob.__version__}.tgz"
    assert "WARNING" not in release.install(NO_POD)
    (listed,) = json.loads(release.helm.run("list", "--namespace", NAMESPACE, "--output", "json").stdout)
    assert listed["chart"] == f"elasticjob-{elasticjob.__version__}"
    assert listed["app_version"] == elasticjob.__version__

    def owned() -> dict[str, dict[str, Any]]:
        return {
            name: _content(one)
            for name, one in release.everything().items()
            if "meta.helm.sh/release-name" in one["metadata"].get("annotations", {})
        }

    made = owned()
    assert {"Deployment/elasticjob-system/elasticjob", f"CustomResourceDefinition//{CRD}"} < made.keys()
    release.helm.chart = generate.CHART
    assert "WARNING" not in release.install(NO_POD)
    assert owned() == made


def test_participants_have_a_priority_level_and_the_operator_another(release: Release[Cluster]) -> None:
    release.install({**NO_POD, "flowSchema": {"enabled": True}})
    kubectl = release.cluster.kubectl

    def uid(kind: str, name: str) -> str:
        return kubectl("get", kind, name, "-o", "jsonpath={.metadata.uid}").stdout

    def classified(
        namespace: str, account: str, path: str, method: str = "PATCH", body: dict[str, Any] | None = None
    ) -> tuple[str, str]:
        """The schema and level of a request with a token of this account, by their UIDs."""
        token = kubectl("-n", namespace, "create", "token", account).stdout.strip()
        answer = ApiClient(release.cluster.server, release.cluster.ca_file, token).request(method, path, body)
        return (
            answer.headers["X-Kubernetes-PF-FlowSchema-UID"],
            answer.headers["X-Kubernetes-PF-PriorityLevel-UID"],
        )

    lease = "/apis/coordination.k8s.io/v1/namespaces/team-a/leases/job-0-0"
    participant = (
        uid("flowschema", "elasticjob-participants"),
        uid("prioritylevelconfiguration", "elasticjob-participants"),
    )
    operator = (uid("flowschema", "elasticjob-operator"), uid("prioritylevelconfiguration", "workload-high"))
    # The API server takes new schemas over within a moment.
    wait_for(
        lambda: classified("team-a", "default", lease) == participant,
        30,
        "the schema is in force",
        interval=0.2,
    )
    assert classified(NAMESPACE, "elasticjob", lease) == operator
    ours = (participant, operator)
    assert classified("team-a", "default", "/api/v1/namespaces/team-a/pods", "GET") not in ours
    leases = lease.rpartition("/")[0]
    assert classified("team-a", "default", f"{leases}?watch=1", "GET") == participant
    # A stranger elects its leader: it reads, creates and updates a Lease, here or elsewhere.
    for path in (lease, lease.replace("team-a", "default")):
        namespace = path.split("/")[5]
        for method, where in (("GET", path), ("POST", path.rpartition("/")[0]), ("PUT", path)):
            body: dict[str, Any] | None = None if method == "GET" else {}
            assert classified(namespace, "default", where, method, body) not in ours, (method, where)
        # One that patches is taken for a participant: rules have no names of objects.
        assert classified(namespace, "default", path) == participant


def test_definition_applied_by_hand_is_taken_over_on_request(release: Release[Cluster]) -> None:
    crd = str(generate.ROOT / "crds" / f"{CRD}.yaml")
    release.cluster.kubectl("apply", "--server-side", "-f", crd)
    with pytest.raises(AssertionError, match="invalid ownership metadata"):
        release.install(NO_POD)
    release.install(NO_POD, "--take-ownership")
    owner = "jsonpath={.metadata.annotations.meta\\.helm\\.sh/release-name}"
    assert release.cluster.kubectl("get", "crd", CRD, "-o", owner).stdout == "elasticjob"


def test_definition_goes_with_the_release_on_request(release: Release[Cluster]) -> None:
    release.install({**NO_POD, "crds": {"keep": False}})
    release.helm.run("uninstall", "elasticjob", "--namespace", NAMESPACE, "--wait")
    wait_for(
        lambda: release.cluster.kubectl("get", "crd", CRD, check=False).returncode != 0, 30, "it is gone"
    )


def test_an_older_chart_may_leave_the_newer_definition(release: Release[Cluster], tmp_path: Path) -> None:
    """What jobs have in its fields is then kept; with the older definition it is dropped."""
    kubectl = release.cluster.kubectl
    older, newer = release.helm.chart, tmp_path / "newer"
    shutil.copytree(older, newer)
    file = newer / "files" / f"{CRD}.yaml"
    definition = yaml.safe_load(file.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["newField"] = {"type": "integer"}
    file.unlink()
    file.write_text(yaml.safe_dump(definition))
    release.helm.chart = newer
    release.install(NO_POD)
    kubectl("wait", f"crd/{CRD}", "--for=condition=Established", "--timeout=60s")
    template = {"spec": {"containers": [{"name": "train", "image": "x", "command": ["torchrun", "x.py"]}]}}
    job = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "mnist"}}
    written = {**job, "spec": {"replicas": 1, "newField": 7, "template": template}}
    wait_for(
        lambda: kubectl("apply", "-f", "-", input=json.dumps(written), check=False).returncode == 0,
        30,
        "the API server takes the new field",
        interval=0.5,
    )

    def new_field(number: int) -> str:
        """What is left of it after the job was written."""
        kubectl("annotate", "ej", "mnist", f"example.com/written={number}", "--overwrite")
        return kubectl("get", "ej", "mnist", "-o", "jsonpath={.spec.newField}").stdout

    try:
        release.words("docs/operate/upgrades.md", "keep-definition", OLD_CHART=str(older))
        assert new_field(1) == "7"
        release.helm.chart = older
        release.install(NO_POD)  # which has the definition again
        wait_for(lambda: new_field(2) == "", 30, "the older definition drops it", interval=0.5)
    finally:
        kubectl("delete", "ej", "mnist", "--wait=false")


def _content(thing: dict[str, Any]) -> dict[str, Any]:
    """The content of an object, and its identity."""
    wanted = {key: value for key, value in thing.items() if key not in ("metadata", "status")}
    meta = thing["metadata"]
    return {**wanted, **{key: meta.get(key) for key in ("uid", "generation", "labels", "annotations")}}
