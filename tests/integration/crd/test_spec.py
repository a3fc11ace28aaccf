"""What the API server accepts of a job, what it adds, and what kubectl says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from crds import generate
from devcluster.access import ClusterAccess
from elasticjob_client.cli.main import program
from tests.integration.crd.jobs import (
    CONTAINER,
    FULL,
    TEMPLATE,
    apply,
    get,
    labelled,
    limited,
    manifest,
    ruled,
    template,
)

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[3] / "examples"

GOOD: dict[str, dict[str, Any]] = {
    "nothing said": manifest(),
    "the longest name": manifest("a" * 45, template=TEMPLATE),
    "a name of one digit": manifest("7"),
    "all bounds alike": manifest(replicas=3, minReplicas=3, maxReplicas=3),
    **{
        f"nprocPerNode {value!r}": manifest(nprocPerNode=value)
        for value in (1, 64, 99_999, "auto", "gpu", "cpu", "xpu")
    },
    "no waiting for newcomers": manifest(
        rendezvous={"lastCallTimeoutSeconds": 0, "initialLastCallTimeoutSeconds": 0}
    ),
    "fencing by proof": manifest(failurePolicy={"fencing": {"type": "WaitForProof"}}),
    "no restarts at all": manifest(failurePolicy={"application": {"maxRestarts": 0}}),
    "unlimited": manifest(failurePolicy={"application": {}, "infrastructure": {}, "preemption": {}}),
    "all that can be said": manifest(**FULL),
    "rules for the pods of others": manifest(
        failurePolicy={"rules": [{"name": "a", "onWorkerExitCodes": [42], "action": "FailJob"}]}
    ),
    "32 rules as large as they may be": ruled(
        *(
            {"name": f"{i:02}" + "a" * 61, "onErrorPattern": "(a+)+" * 51, "action": "Restart"}
            for i in range(32)
        )
    ),
    "as many pods as there may be": manifest(replicas=4_000, spares=1_000, template=TEMPLATE),
    "kept for no time": manifest(ttlSecondsAfterFinished=0, cleanPodPolicy="None"),
    "managed by another": manifest(managedBy="kueue.x-k8s.io/multikueue"),
    "no delay": manifest(scaling={"scaleUpDelaySeconds": 0}),
    "restartPolicy Never": manifest(template=template(restartPolicy="Never")),
    "environment that the operator overrides": manifest(
        template={
            "spec": {"containers": [{**CONTAINER, "env": [{"name": "PET_RDZV_BACKEND", "value": "c10d"}]}]}
        }
    ),
    "memory checkpoints": manifest(memoryCheckpoints={"perPod": "1.5Gi"}, template=limited("2Gi")),
    "memory checkpoints switched off": manifest(memoryCheckpoints={"perPod": 0}, template=TEMPLATE),
    "memory checkpoints beside the limit of another container": manifest(
        memoryCheckpoints={"perPod": "4Gi"},
        template=limited("1Gi", annotations={"kubectl.kubernetes.io/default-container": "beside"}),
    ),
    "labels of others": manifest(template=labelled(labels={"app.elasticjob.dev/x": "1"}, annotations={})),
}


@pytest.mark.parametrize("job", GOOD.values(), ids=GOOD.keys())
def test_accepted(cluster: ClusterAccess, job: dict[str, Any]) -> None:
    answer = cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))
    assert "created (server dry run)" in answer.stdout


@pytest.mark.parametrize(
    "example", ["digits", "digits-one-node", "digits-devcluster", "indexed-job", "indexed-job-devcluster"]
)
def test_the_examples_are_accepted(cluster: ClusterAccess, namespace: str, example: str) -> None:
    answer = cluster.kubectl("apply", "-n", namespace, "--dry-run=server", "-k", str(EXAMPLES / example))
    assert re.search(r"elasticjob.elasticjob.dev/digits(-indexed)? created", answer.stdout)


def test_the_example_without_an_operator_is_accepted(cluster: ClusterAccess, namespace: str) -> None:
    folder = EXAMPLES / "without-an-operator"
    rights = cluster.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", str(folder / "rights.yaml"))
    assert "role.rbac.authorization.k8s.io/torchrun-peers created" in rights.stdout
    answer = cluster.kubectl("apply", "-n", namespace, "--dry-run=server", "-k", str(folder))
    assert "job.batch/digits created" in answer.stdout
    assert "elasticjob.elasticjob.dev" not in answer.stdout
    job = ("create", "-n", namespace, "--dry-run=server", "-f", str(folder / "job.yaml"))
    replaced = cluster.kubectl(*job, "-o", "jsonpath={.spec.podReplacementPolicy}").stdout
    assert replaced == "TerminatingOrFailed", "a pod on a dead node is replaced"


def test_the_documented_init_container_is_accepted_in_the_example(
    cluster: ClusterAccess, namespace: str
) -> None:
    """In a pod template of the example, as a strategic merge puts it there."""
    *_, documented_template = documented("without-an-operator.md")
    patch = {"spec": {"template": yaml.safe_load(documented_template)}}
    example = str(EXAMPLES / "without-an-operator" / "job.yaml")
    local = ("patch", "--local", "-f", example, "--type=strategic", "-p", json.dumps(patch), "-o", "json")
    job = json.loads(cluster.kubectl(*local).stdout)
    spec = job["spec"]["template"]["spec"]
    assert [one["name"] for one in spec["containers"]] == ["train"]
    assert {one["name"] for one in spec["containers"][0]["env"]} == {"RUN", "PYTHONPATH"}
    create = ("create", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-")
    assert "created (server dry run)" in cluster.kubectl(*create, input=json.dumps(job)).stdout


def test_the_documented_network_policy_is_accepted(cluster: ClusterAccess, namespace: str) -> None:
    (policy,) = (one for one in documented("without-an-operator.md") if "kind: NetworkPolicy" in one)
    create = ("create", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-")
    assert "created (server dry run)" in cluster.kubectl(*create, input=policy).stdout


KUBEFLOW = Path(__file__).parents[2] / "unit" / "client" / "kubeflow"


@pytest.mark.parametrize("manifest", sorted(path.name for path in KUBEFLOW.iterdir()))
def test_what_is_converted_from_kubeflow_is_accepted(
    cluster: ClusterAccess, namespace: str, manifest: str
) -> None:
    """Without a field that the API server does not know."""
    made = CliRunner().invoke(program, ["convert", str(KUBEFLOW / manifest)])
    assert made.exit_code == 0, made.output
    for body in yaml.safe_load_all(made.stdout):
        body["metadata"]["namespace"] = namespace
        answer = cluster.kubectl(
            "create", "--dry-run=server", "--validate=strict", "-f", "-", input=json.dumps(body)
        )
        assert "created (server dry run)" in answer.stdout


def documented(page: str) -> list[str]:
    """The pieces of YAML in a page for users."""
    text = (EXAMPLES.parent / "docs" / "use" / page).read_text()
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def test_the_documented_example_is_accepted(cluster: ClusterAccess) -> None:
    (example,) = documented("job.md")
    limits, rules, fencing = documented("failures.md")
    job = yaml.safe_load(example)
    job["spec"]["template"] = TEMPLATE
    cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))
    job["spec"] |= yaml.safe_load(limits)
    job["spec"]["failurePolicy"] |= yaml.safe_load(rules)
    job["spec"]["failurePolicy"] |= yaml.safe_load(fencing)["failurePolicy"]
    cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))


def test_defaults_are_written_into_the_object_and_absent_bounds_are_not(
    cluster: ClusterAccess, namespace: str
) -> None:
    apply(cluster, namespace, manifest())
    assert get(cluster, namespace)["spec"] == {
        "replicas": 1,
        "spares": 0,
        "handlerSource": "Injected",
        "rendezvous": {
            "initialLastCallTimeoutSeconds": 300,
            "lastCallTimeoutSeconds": 15,
            "rejoinTimeoutSeconds": 45,
            "establishTimeoutSeconds": 15,
            "heartbeatPeriodSeconds": 1,
            "heartbeatTimeoutSeconds": 10,
            "stallTimeoutSeconds": 30,
        },
        "scaling": {"scaleUpDelaySeconds": 10},
        "suspend": False,
        "cleanPodPolicy": "Running",
        "networkPolicy": "JobOnly",
        "gangScheduling": "None",
        "drainSeconds": 30,
    }


def test_one_timeout_leaves_the_defaults_of_the_others(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(rendezvous={"heartbeatTimeoutSeconds": 3}))
    rendezvous = get(cluster, namespace)["spec"]["rendezvous"]
    assert (rendezvous["heartbeatTimeoutSeconds"], rendezvous["rejoinTimeoutSeconds"]) == (3, 45)


def test_applied_twice_is_unchanged(cluster: ClusterAccess, namespace: str) -> None:
    """The resource, and the definition too: its copy in the annotation of client-side apply fits."""
    job = manifest(replicas=2, template=TEMPLATE)
    assert "created" in apply(cluster, namespace, job)
    assert "unchanged" in apply(cluster, namespace, job)
    assert "unchanged" in cluster.kubectl("apply", "-f", str(generate.CRD_FILE)).stdout


def test_server_side_apply_merges_lists_by_their_keys(cluster: ClusterAccess, namespace: str) -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]
    job = manifest(replicas=2, template={"spec": {"containers": [{**CONTAINER, "ports": ports}]}})
    command = ("apply", "--server-side", "-n", namespace, "-f", "-")
    cluster.kubectl(*command, input=json.dumps(job))
    cluster.kubectl(*command, input=json.dumps(job))
    container = get(cluster, namespace)["spec"]["template"]["spec"]["containers"][0]
    assert [port["protocol"] for port in container["ports"]] == ["TCP", "UDP"]


def test_explain(cluster: ClusterAccess) -> None:
    text = cluster.kubectl("explain", "ej.spec.rendezvous.initialLastCallTimeoutSeconds").stdout
    assert "once minReplicas pods have joined" in " ".join(text.split())


def test_the_job_of_your_script_is_accepted(cluster: ClusterAccess, namespace: str) -> None:
    claim, job = documented("writing.md")
    answer = cluster.kubectl(
        "apply", "-n", namespace, "--dry-run=server", "-f", "-", input=f"{claim}---\n{job}"
    )
    assert answer.stdout.splitlines() == [
        "persistentvolumeclaim/mnist created (server dry run)",
        "elasticjob.elasticjob.dev/mnist created (server dry run)",
    ]
