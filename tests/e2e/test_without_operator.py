"""The examples without an operator, on nodes: a user with ``edit`` creates them after an ``admin`` of the
namespace has made the Role. Nothing of this project is installed in the cluster."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.peers.run import STATE_ANNOTATION, round_lease
from elasticjob.peers.settled import Settled
from tests.e2e.job import DEADLINE, ENVIRONMENT, ROOT, SCRIPTS

EXAMPLES = ROOT / "examples" / "without-an-operator"
ADMIN, EDITOR = "ada", "edith"

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


class Run:
    """One run, by the example's own words."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        folder.mkdir()

    def kubectl(self, user: str, *words: str, input: str | None = None, check: bool = True) -> str:
        """What kubectl prints for this user of the namespace."""
        impersonated = (f"--as={user}",) if user else ()
        done = self.cluster.kubectl("-n", self.namespace, *impersonated, *words, input=input, check=check)
        return done.stdout + done.stderr

    def create(self, name: str) -> None:
        """Apply the example as the editor, with the script of these tests."""
        for manifest in yaml.safe_load_all((EXAMPLES / name).read_text()):
            self.kubectl(EDITOR, "apply", "-f", "-", input=json.dumps(self._fitted(manifest)))

    def _fitted(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if manifest["kind"] == "JobSet":
            manifest = child_job(manifest)
        if manifest["kind"] == "Service":
            return manifest
        spec = manifest["spec"]["template"]["spec"]
        # The kustomization brings the claim and the ConfigMap with the example's own script.
        spec["volumes"] = [{"name": volume["name"], "emptyDir": {}} for volume in spec.get("volumes", ())]
        container = spec["containers"][0]
        container["command"][-1:] = [str(SCRIPTS / "others_steps.py"), str(self.folder)]
        container["env"] = [*container.get("env", []), *ENVIRONMENT]
        return manifest

    def settled(self) -> Settled | None:
        """What the round Lease says."""
        text = self.kubectl("", "get", "lease", round_lease("digits"), "-o", "json", check=False)
        if not text.startswith("{"):
            return None
        annotations = json.loads(text)["metadata"]["annotations"]
        return Settled.parse(annotations["elasticjob.dev/round"], annotations[STATE_ANNOTATION])

    def steps(self, number: int) -> list[dict[str, Any]]:
        """What the script has logged of this round."""
        lines = [line for path in self.folder.glob("steps-*.jsonl") for line in path.read_text().splitlines()]
        return [
            step for line in lines if line.endswith("}") and (step := json.loads(line))["round"] == number
        ]

    def trains(self, number: int, members: int) -> Settled:
        """Wait until this round, or a later one, trains with so many members."""

        def found() -> Settled | None:
            settled = self.settled()
            r = settled.state if settled is not None else None
            if r is None or not r.active or r.number < number or len(r.members) != members:
                return None
            return settled if self.steps(r.number) else None

        return wait_for(found, DEADLINE, f"round {number} trains with {members} members", interval=0.2)

    def closes(self) -> Settled:
        """Wait until the run is over."""
        return wait_for(
            lambda: s if (s := self.settled()) is not None and s.closed else None, DEADLINE, "it is over"
        )


def child_job(jobset: dict[str, Any]) -> dict[str, Any]:
    """The one Job that JobSet's controller makes of this JobSet, as far as torchruns meet it: the name, and
    the labels on Job and pods. (The controller itself is not run here.)"""
    (only,) = jobset["spec"]["replicatedJobs"]
    template = only["template"]
    labels = {"jobset.sigs.k8s.io/jobset-uid": str(uuid.uuid4()), "jobset.sigs.k8s.io/job-index": "0"}
    metadata = template["spec"]["template"]["metadata"]
    metadata["labels"] = {**metadata["labels"], **labels}
    name = f"{jobset['metadata']['name']}-{only['name']}-0"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": template["spec"],
    }


@pytest.fixture
def run(devcluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Run]:
    """An admin of the namespace has applied rights.yaml; all is gone before the next test begins."""
    found = Run(devcluster, namespace, tmp_path / "run")
    for user, role in ((ADMIN, "admin"), (EDITOR, "edit")):
        found.kubectl("", "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    found.kubectl(ADMIN, "apply", "-f", str(EXAMPLES / "rights.yaml"))
    yield found
    for kind in ("jobs", "statefulsets", "leases"):
        found.kubectl("", "delete", kind, "--all", "--timeout=60s", check=False)
    found.kubectl("", "delete", "pods", "--all", "--force", "--timeout=60s", check=False)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["job.yaml", "statefulset.yaml", "jobset.yaml"])
def test_the_example_trains_loses_a_pod_and_ends_well(run: Run, example: str) -> None:
    run.create(example)
    first = run.trains(1, members=3)
    names = [m.name for m in first.state.members]
    assert first.state.number == 1
    lost = next(m.name for m in first.state.members[1:])
    run.cluster.nodes.kill_container(run.namespace, lost)
    later = run.trains(2, members=3)
    assert sum(m.name in names for m in later.state.members) >= 2
    (run.folder / "stop").touch()
    over = run.closes()
    assert over.outcome == "Complete", over.message


def test_edit_may_use_the_role_and_not_make_it(run: Run) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "digits.peers-round"},
    }
    assert "created" in run.kubectl(EDITOR, "create", "-f", "-", input=json.dumps(lease))
    rights = [
        r for r in yaml.safe_load_all((EXAMPLES / "rights.yaml").read_text()) if r["kind"] != "ServiceAccount"
    ]
    assert [r["kind"] for r in rights] == ["Role", "RoleBinding"]
    for manifest in rights:
        manifest["metadata"]["name"] = "mine"
        said = run.kubectl(EDITOR, "create", "-f", "-", input=json.dumps(manifest), check=False)
        assert "forbidden" in said.lower(), said
        assert "created" in run.kubectl(ADMIN, "create", "-f", "-", input=json.dumps(manifest))


def test_an_admin_cannot_grant_what_only_the_cluster_has(run: Run) -> None:
    role = ("create", "role", "nodes", "--verb=get", "--resource=nodes")
    assert "attempting to grant RBAC permissions not currently held" in run.kubectl(ADMIN, *role, check=False)


LEASES = ("get", "list", "watch", "create", "patch")


@pytest.mark.parametrize("pods", [True, False], ids=["with pods", "without pods"])
def test_the_pods_account_may_do_what_the_role_says(run: Run, pods: bool) -> None:
    if not pods:
        smaller = json.dumps([{"op": "remove", "path": "/rules/1"}])
        run.kubectl(ADMIN, "patch", "role", "torchrun-peers", "--type=json", "-p", smaller)
    account = f"system:serviceaccount:{run.namespace}:torchrun-peers"

    def may(verb: str, what: str) -> bool:
        return run.kubectl("", "auth", "can-i", verb, what, f"--as={account}", check=False).startswith("yes")

    assert all(may(verb, "leases.coordination.k8s.io") for verb in LEASES)
    assert not may("delete", "leases.coordination.k8s.io")
    wait_for(lambda: may("watch", "pods") == pods, DEADLINE, "the role counts", interval=0.1)
    assert not may("create", "pods")
    assert not may("get", "secrets")
    other = f"system:serviceaccount:{run.namespace}:default"
    assert run.kubectl("", "auth", "can-i", "create", "leases", f"--as={other}", check=False).startswith("no")
