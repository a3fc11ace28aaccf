"""helm install, upgrade, rollback, uninstall and install again, while jobs train; the operator runs in pods.

With a devcluster of its own: the chart's objects are the cluster's, and its policy would judge other tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import generate
from devcluster.cluster import Cluster
from devcluster.commands import DEPLOYMENTS, DISRUPTION, Options
from devcluster.wait import wait_for
from tests import operator_account
from tests.chart.helm import NAMESPACE, Helm
from tests.e2e.job import JobRun

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.devcluster,
    pytest.mark.root,  # pods need their service account's volume
    pytest.mark.timeout(600),
]

OF_THE_RELEASE = ["-l", "app.kubernetes.io/instance=elasticjob"]
KINDS = (
    "deployments,replicasets,pods,serviceaccounts,poddisruptionbudgets,roles,rolebindings,clusterroles,"
    "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,flowschemas,"
    "prioritylevelconfigurations,customresourcedefinitions,leases"
)
# Pods share this machine's ports, but not their addresses.
VALUES: dict[str, Any] = {
    "probes": {"address": "$(POD_IP)"},
    "env": [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        # The code of this tree, wherever the environment's own is from.
        {"name": "PYTHONPATH", "value": f"{generate.ROOT}/handler:{generate.ROOT}/operator"},
    ],
}
ONE_POD: dict[str, Any] = {"replicas": 1, "leaderElection": {"enabled": False}}


class Release:
    """The release `elasticjob` in a cluster."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster = cluster
        self.helm = Helm(home, cluster.kubeconfig)

    def upgrade(self, values: dict[str, Any], *flags: str) -> None:
        """helm upgrade --install, and wait until the operator is ready."""
        file = self.helm.values_file({**VALUES, **values})
        chart = str(self.helm.chart)
        where = ["--namespace", NAMESPACE, "--wait", "--timeout", "120s", "--values", file]
        try:
            self.helm.run("upgrade", "--install", "elasticjob", chart, *where, *flags)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.state()}") from None

    def run(self, command: str, *flags: str) -> str:
        """Another command on the release."""
        where = ["--namespace", NAMESPACE, "--wait", "--timeout", "120s"]
        return self.helm.run(command, "elasticjob", *flags, *where).stdout

    def objects(self) -> set[str]:
        """What there is of the release, as kind/name."""
        answer = self.cluster.kubectl("get", KINDS, "-A", *OF_THE_RELEASE, "-o", "json")
        return {f"{one['kind']}/{one['metadata']['name']}" for one in json.loads(answer.stdout)["items"]}

    def operators(self, count: int = 2) -> dict[str, list[str]]:
        """The arguments of each of the operator's pods, by UID: so many, of which one leads."""

        def pods() -> list[dict[str, Any]]:
            answer = self.cluster.kubectl("-n", NAMESPACE, "get", "pods", *OF_THE_RELEASE, "-o", "json")
            found: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
            return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

        def leads() -> bool:
            lease = self.cluster.kubectl("-n", NAMESPACE, "get", "lease", "elasticjob", "-o", "json").stdout
            holder = str(json.loads(lease).get("spec", {}).get("holderIdentity", ""))
            return holder.partition("_")[0] in {pod["metadata"]["name"] for pod in pods()}

        wait_for(lambda: len(pods()) == count, 60, f"{count} operators are left", interval=0.2)
        if count > 1:
            wait_for(leads, 60, "one of them leads", interval=0.2)
        return {pod["metadata"]["uid"]: pod["spec"]["containers"][0]["args"] for pod in pods()}

    def state(self) -> str:
        """What explains an operator that does not come up: pods, events, logs."""
        found = self.cluster.kubectl("-n", NAMESPACE, "get", "pods,events", "-o", "wide", check=False).stdout
        for file in sorted((self.cluster.nodes_dir / "logs").glob(f"{NAMESPACE}_*/*/*.log")):
            found += f"\n== {file.name} of {file.parent.parent.name}\n"
            found += "\n".join(file.read_text(errors="replace").splitlines()[-30:])
        return found


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    """A cluster in which nothing is installed, with a namespace that admits restricted pods only."""
    options = Options(further_controllers=(*DEPLOYMENTS, DISRUPTION))
    with Cluster(nodes=2, options=options) as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        cluster.kubectl("create", "namespace", "team-a")
        # Who is uninstalled is refused what it still asks for.
        operator_account.watch(cluster, denials=False)
        made = Release(cluster, tmp_path / "helm")
        yield made
        print(made.state()[-8000:])


def test_jobs_train_through_the_life_of_a_release(release: Release, tmp_path: Path) -> None:
    release.upgrade({})
    first = release.operators()
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply(failurePolicy={"infrastructure": {"maxRestarts": 0}})
    number = job.training(1, members=2)["number"]

    # The policy is in force: the pods of a job share their rights, but none writes another's Lease.
    refusal = _writes_lease(release, "job-0-0", "job-1-0")
    assert "belongs to the pod of that name, and this is the token of pod job-0-0" in refusal
    assert _writes_lease(release, "job-0-0", "job-0-0") == ""

    # An upgrade brings new pods, and what is new in the definition.
    crd = release.cluster.kubectl("get", "crd", "elasticjobs.elasticjob.dev", "-o", "yaml").stdout
    assert yaml.safe_load(crd)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    _forget_a_column(release)
    release.upgrade({"verbose": True, "flowSchema": {"enabled": True}})
    second = release.operators()
    assert not first.keys() & second.keys()
    assert all("--verbose" in args for args in second.values())
    assert "FlowSchema/elasticjob-participants" in release.objects()
    assert _columns(release) == _columns_of_crds()
    job.goes_on(number)

    release.run("rollback", "1")
    assert not any("--verbose" in args for args in release.operators().values())
    assert "FlowSchema/elasticjob-participants" not in release.objects()
    job.goes_on(number)

    assert _refused(release) == set()  # before its rights are taken away
    said = release.run("uninstall")
    assert "kept due to the resource policy" in said
    wait_for(
        lambda: release.objects() == {"CustomResourceDefinition/elasticjobs.elasticjob.dev"},
        60,
        lambda: f"only the definition is left: {release.objects()}",
    )
    job.goes_on(number)

    # A later install takes definition and jobs over.
    release.upgrade({})
    job.goes_on(number)
    job.scale(3)
    job.training(number + 1, members=3)
    job.stop()
    job.complete()
    assert {r.get("account") for r in job.rounds()} <= {None, "scaling"}


def test_with_namespaces_and_no_cluster_wide_right(release: Release, tmp_path: Path) -> None:
    release.cluster.kubectl("apply", "-f", str(generate.ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"))
    release.upgrade(
        {
            "watchNamespaces": ["team-a"],
            "crds": {"install": False},
            "leasePolicy": {"enabled": False},
            "userRoles": {"create": False},
            "rbac": {"readNodes": False},
        }
    )
    assert not [name for name in release.objects() if name.startswith(("Cluster", "Validating", "Custom"))]
    elsewhere = JobRun(release.cluster, "default", tmp_path / "elsewhere")
    elsewhere.apply()
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply()
    job.training(1, members=2)
    job.stop()
    job.complete()
    assert elsewhere.status() == {}
    # It asks whether it may see nodes, and does without.
    assert _refused(release) == {("list", "nodes")}


def test_users_edit_and_view_jobs_but_no_status(release: Release) -> None:
    release.upgrade(ONE_POD)
    release.operators(1)
    kubectl = release.cluster.kubectl
    for role in ("edit", "view"):
        kubectl("-n", "team-a", "create", "serviceaccount", role)
        to = [f"--clusterrole={role}", f"--serviceaccount=team-a:{role}"]
        kubectl("-n", "team-a", "create", "rolebinding", role, *to)

    def can(role: str, verb: str, what: str) -> bool:
        who = f"--as=system:serviceaccount:team-a:{role}"
        return kubectl("-n", "team-a", "auth", "can-i", verb, what, who, check=False).stdout.strip() == "yes"

    wait_for(lambda: can("edit", "create", "elasticjobs"), 30, "the role edit is aggregated")
    wait_for(lambda: can("view", "get", "elasticjobs"), 30, "the role view is aggregated")
    assert can("edit", "patch", "elasticjobs/scale")
    assert can("edit", "delete", "elasticjobs")
    assert can("view", "watch", "elasticjobs")
    assert not can("view", "create", "elasticjobs")
    assert not can("view", "patch", "elasticjobs/scale")
    for role in ("edit", "view"):
        assert not can(role, "patch", "elasticjobs/status")


def test_definition_applied_by_hand_is_taken_over_on_request(release: Release) -> None:
    crd = str(generate.ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    release.cluster.kubectl("apply", "--server-side", "-f", crd)
    with pytest.raises(AssertionError, match="invalid ownership metadata"):
        release.upgrade(ONE_POD)
    release.upgrade(ONE_POD, "--take-ownership")
    assert "CustomResourceDefinition/elasticjobs.elasticjob.dev" in release.objects()


def test_manifests_without_helm(release: Release, tmp_path: Path) -> None:
    """The file that is generated, as it is applied by hand: with the changes that this machine needs."""
    release.cluster.kubectl("apply", "--server-side", "-f", str(generate.ROOT / "crds"))
    objects = list(yaml.safe_load_all(generate.MANIFESTS.read_text()))
    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["env"] += VALUES["env"]
    container["args"] = [word.replace("0.0.0.0", "$(POD_IP)") for word in container["args"]]
    text = yaml.safe_dump_all(objects)
    release.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
    release.cluster.kubectl(
        "-n", NAMESPACE, "rollout", "status", "deployment/elasticjob", "--timeout=120s", timeout=130
    )
    job = JobRun(release.cluster, "team-a", tmp_path / "run")
    job.apply()
    number = job.training(1, members=2)["number"]
    release.cluster.kubectl("delete", "-f", "-", "--timeout=60s", input=text)
    job.goes_on(number)


def _writes_lease(release: Release, pod: str, lease: str) -> str:
    """Ask to write a Lease of the job with the token of one of its pods; returns what was said against it."""
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"]
    kubectl = release.cluster.kubectl
    token = kubectl("-n", "team-a", "create", "token", "job-elasticjob", *bound).stdout.strip()
    patch = json.dumps({"metadata": {"annotations": {"example.com/written-by": pod}}})
    # As nobody: a kubeconfig with the administrator's token would win over the flag.
    return kubectl(
        *("-n", "team-a", "patch", "lease", lease, "--type=merge", "-p", patch, "--dry-run=server"),
        *("--kubeconfig=/dev/null", f"--server={release.cluster.server}", f"--token={token}"),
        f"--certificate-authority={release.cluster.ca_file}",
        check=False,
    ).stderr


def _refused(release: Release) -> set[tuple[str, str]]:
    """What the operator has asked for and may not, as verb and resource."""
    account = f"system:serviceaccount:{NAMESPACE}:elasticjob"
    events = [json.loads(line) for line in release.cluster.audit_log.read_text().splitlines()]
    asked = [one for one in events if one["user"]["username"] == account and "responseStatus" in one]
    assert asked
    return {
        (one["verb"], one["objectRef"]["resource"])
        for one in asked
        if one["responseStatus"].get("code") == 403
    }


def _columns(release: Release) -> list[str]:
    answer = release.cluster.kubectl("get", "crd", "elasticjobs.elasticjob.dev", "-o", "json")
    return [
        one["name"] for one in json.loads(answer.stdout)["spec"]["versions"][0]["additionalPrinterColumns"]
    ]


def _columns_of_crds() -> list[str]:
    file = generate.ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
    return [
        one["name"]
        for one in yaml.safe_load(file.read_text())["spec"]["versions"][0]["additionalPrinterColumns"]
    ]


def _forget_a_column(release: Release) -> None:
    """Make the definition an older one."""
    patch = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/1"}]
    release.cluster.kubectl(
        "patch", "crd", "elasticjobs.elasticjob.dev", "--type=json", "-p", json.dumps(patch)
    )
    assert _columns(release) != _columns_of_crds()
