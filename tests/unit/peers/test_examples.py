"""The three examples without an operator say the same of their pods."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.e2e.peer_runs import EXAMPLES, child_job

RUN_OF: dict[str, dict[str, Any]] = {
    "job.yaml": {
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    },
    "statefulset.yaml": {"value": "digits-1"},
    "jobset.yaml": {
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"}}
    },
}
"""Where each has the run's id from, which is the one thing that differs."""


def workload(example: str) -> dict[str, Any]:
    """The Job or StatefulSet of an example; of the JobSet, the Job that is made of it."""
    *_, found = yaml.safe_load_all((EXAMPLES / example).read_text())
    return child_job(found) if found["kind"] == "JobSet" else found


def pod_spec(example: str) -> dict[str, Any]:
    """Without what its kind requires, and without the run's id and its directory."""
    spec: dict[str, Any] = workload(example)["spec"]["template"]["spec"]
    # A StatefulSet takes no other than Always, which is the default.
    assert spec.pop("restartPolicy", "Always") == ("Always" if example == "statefulset.yaml" else "Never")
    (run,) = spec["containers"][0].pop("env")
    assert run == {"name": "RUN", **RUN_OF[example]}
    folder = f"/checkpoints/{example.removesuffix('.yaml')}"
    args = spec["containers"][0].pop("args")
    assert args == [f"--checkpoint-dir={folder}", f"--step-log={folder}/steps.jsonl"]
    return spec


@pytest.mark.parametrize("example", ["job.yaml", "jobset.yaml"])
def test_a_pod_on_a_dead_node_is_replaced(example: str) -> None:
    """With a podFailurePolicy, Kubernetes waits until the old one has ended: podReplacementPolicy Failed."""
    assert not workload(example)["spec"].keys() & {"podFailurePolicy", "podReplacementPolicy"}


@pytest.mark.parametrize("example", RUN_OF)
def test_it_is_said_how_to_train_on_all_gpus(example: str) -> None:
    """torchrun's default is one worker in each pod; these train on CPUs."""
    assert "# On GPUs add --nproc-per-node=gpu" in (EXAMPLES / example).read_text()


@pytest.mark.parametrize("example", ["statefulset.yaml", "jobset.yaml"])
def test_the_pods_are_those_of_the_job(example: str) -> None:
    assert pod_spec(example) == pod_spec("job.yaml")
    ours, jobs = (workload(one)["spec"]["template"]["metadata"]["labels"] for one in (example, "job.yaml"))
    assert jobs.items() <= ours.items()


def test_what_the_pods_mount_is_in_the_files() -> None:
    """``kubectl apply -k files`` brings the ConfigMap and the claim by these names, and the Job's own
    kustomization is made of it."""
    named = {
        source.get("claimName", source.get("name"))
        for volume in pod_spec("job.yaml")["volumes"]
        for source in volume.values()
        if isinstance(source, dict) and source.keys() & {"claimName", "name"}
    }
    digits = yaml.safe_load((EXAMPLES.parent / "digits" / "kustomization.yaml").read_text())
    (scripts,) = digits["configMapGenerator"]
    claim = yaml.safe_load((EXAMPLES.parent / "digits" / "claim.yaml").read_text())
    assert named == {scripts["name"]} == {claim["metadata"]["name"]}
    assert "train.py" in scripts["files"]
    assert yaml.safe_load((EXAMPLES / "files" / "kustomization.yaml").read_text())["resources"] == [
        "../../digits"
    ]
    assert yaml.safe_load((EXAMPLES / "kustomization.yaml").read_text())["resources"] == ["files", "job.yaml"]
