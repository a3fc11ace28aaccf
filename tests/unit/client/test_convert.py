"""From Kubeflow's manifests to ElasticJobs. tests/integration/crd has the API server take what comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from elasticjob_client.cli.main import program
from elasticjob_client.convert import limits, pytorchjob, trainjob
from elasticjob_client.convert.command import rewritten
from elasticjob_client.errors import ClientError
from tests.docs_commands import ROOT, script

PAGE = ("docs/use/from-kubeflow.md", "convert")
MANIFESTS = Path(__file__).parent / "kubeflow"


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def test_an_elastic_pytorchjob() -> None:
    (body,) = manifests("pytorchjob-elastic.yaml")
    made = pytorchjob.converted(body)
    job, autoscaler = made.bodies
    assert job["metadata"] == {"name": "imagenet", "namespace": "research", "labels": {"team": "vision"}}
    spec = job["spec"]
    template = spec.pop("template")
    assert spec == {
        "replicas": 3,
        "minReplicas": 1,
        "maxReplicas": 4,
        "nprocPerNode": "gpu",
        "activeDeadlineSeconds": 86400,
        "ttlSecondsAfterFinished": 3600,
        "cleanPodPolicy": "All",
        "failurePolicy": {"application": {"maxRestarts": 20}},
    }
    assert [one["name"] for one in template["spec"]["containers"]] == ["pytorch", "log-shipper"]
    container = template["spec"]["containers"][0]
    assert container["command"] == ["torchrun", "--redirects=3", "/workspace/imagenet.py"]
    assert container["args"] == ["--arch=resnet50", "/data"]
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "4"}]
    assert "ports" not in container
    assert "restartPolicy" not in template["spec"]
    assert template["spec"]["priorityClassName"] == "high"
    assert autoscaler["spec"]["scaleTargetRef"]["kind"] == "ElasticJob"
    assert (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"]) == (1, 4)
    said = "\n".join(made.notes)
    for part in (
        "elasticPolicy.rdzvBackend, rdzvPort: left out",
        "torchrun's --nnodes, --rdzv-backend, --rdzv-endpoint: left out",
        "environment MASTER_ADDR: left out",
        "schedulingPolicy.minAvailable, queue: left out",
        "restartPolicy OnFailure: left out",
    ):
        assert part in said


def test_a_pytorchjob_with_a_master_and_python_as_its_command() -> None:
    (body,) = manifests("pytorchjob-master.yaml")
    made = pytorchjob.converted(body)
    (job,) = made.bodies
    assert (job["spec"]["replicas"], job["spec"]["failurePolicy"]) == (
        4,
        {"application": {"maxRestarts": 0}},
    )
    assert "minReplicas" not in job["spec"]
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert (container["command"], container["args"]) == (["torchrun", "mnist.py"], ["--epochs=1"])
    assert any("Master and Worker differ in spec.containers[0].resources" in note for note in made.notes)
    assert any("torchrun starts the script now" in note for note in made.notes)


def test_a_trainjob_with_its_runtime() -> None:
    runtime, body = manifests("trainjob.yaml")
    made = trainjob.converted(body, runtime)
    (job,) = made.bodies
    spec = job["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert (spec["replicas"], spec["nprocPerNode"], spec["suspend"]) == (4, 2, False)
    assert (container["name"], container["image"]) == ("node", "registry.example/llm:2")
    assert container["command"] == ["torchrun", "finetune.py"]
    assert {one["name"]: one["value"] for one in container["env"]} == {"A": "job", "B": "runtime"}
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert spec["template"]["spec"]["volumes"][0]["name"] == "data"
    said = "\n".join(made.notes)
    assert "the runtime's job dataset-initializer: not converted" in said
    assert "initializer: not converted" in said
    assert "podGroupPolicy: left out" in said


def test_a_trainjob_without_its_runtime_says_how_to_get_it() -> None:
    _, body = manifests("trainjob.yaml")
    made = trainjob.converted(body, None)
    assert "kubectl get clustertrainingruntime torch-distributed -o yaml" in made.notes[0]
    del body["spec"]["trainer"]["image"]
    with pytest.raises(ValueError, match="names an image"):
        trainjob.converted(body, None)


def test_a_runtime_that_is_not_torchs_is_refused() -> None:
    runtime, body = manifests("trainjob.yaml")
    runtime["spec"]["mlPolicy"] = {"mpi": {}}
    with pytest.raises(ValueError, match="the runtime is for mpi"):
        trainjob.converted(body, runtime)


@pytest.mark.parametrize(
    ("command", "arguments", "becomes", "note"),
    [
        (["torchrun", "train.py"], ["-x"], ["torchrun", "train.py", "-x"], ""),
        (["python", "-u", "train.py"], [], ["torchrun", "train.py"], "torchrun starts the script now"),
        (["/opt/bin/python3.11", "-m", "pkg.train"], ["1"], ["torchrun", "-m", "pkg.train", "1"], "starts"),
        (
            ["python", "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "pkg"],
            [],
            ["torchrun", "-m", "pkg"],
            "--nproc-per-node, --standalone: left out",
        ),
        (["torchrun", "--tee", "3", "--nnodes", "2", "t.py"], [], ["torchrun", "--tee", "3", "t.py"], "left"),
        (["bash", "-c", "torchrun --nnodes=2 t.py"], [], ["bash", "-c", "torchrun --nnodes=2 t.py"], "shell"),
        (["accelerate", "launch", "t.py"], [], ["accelerate", "launch", "t.py"], "starts with 'accelerate'"),
        ([], ["--lr=1"], ["--lr=1"], "the image's own command starts"),
    ],
)
def test_commands(command: list[str], arguments: list[str], becomes: list[str], note: str) -> None:
    found = rewritten(command, arguments)
    assert [*found.command, *found.arguments] == becomes
    assert note in "\n".join(found.notes)
    assert bool(note) == bool(found.notes)


def test_what_torchrun_was_told_goes_into_the_job() -> None:
    found = rewritten(
        ["torchrun", "--nnodes=2:8", "--nproc-per-node", "4", "--max_restarts=3", "t.py", "--nnodes=9"], []
    )
    assert (found.minimum, found.maximum, found.nproc_per_node, found.max_restarts) == (2, 8, 4, 3)
    assert [*found.command, *found.arguments] == ["torchrun", "t.py", "--nnodes=9"]


@pytest.mark.parametrize(
    ("flags", "value", "field"),
    [
        (["--nproc_per_node=$(N)"], "$(N)", "set spec.nprocPerNode yourself"),
        (["--nproc-per-node", "$(N)"], "$(N)", "set spec.nprocPerNode yourself"),
        (["--max-restarts=-1"], "-1", "set spec.failurePolicy.application.maxRestarts yourself"),
        (["--nnodes=1:$(N)"], "1:$(N)", "spec.minReplicas and spec.maxReplicas yourself"),
    ],
)
def test_a_value_that_is_not_known_is_left_to_the_user(flags: list[str], value: str, field: str) -> None:
    found = rewritten(["python", "-m", "torch.distributed.run", *flags, "t.py"], [])
    assert found.command == ["torchrun", "t.py"]
    (note,) = found.notes
    assert repr(value) in note
    assert note.endswith(field)
    assert "the operator sets" not in note


def test_processes_are_a_number_of_a_trainjob_too() -> None:
    runtime, body = manifests("trainjob.yaml")
    body["spec"]["trainer"]["numProcPerNode"] = "4"
    assert trainjob.converted(body, runtime).bodies[0]["spec"]["nprocPerNode"] == 4


def elastic(replicas: int = 2, processes: Any = None, run: Any = None, **policy: Any) -> dict[str, Any]:
    """A PyTorchJob."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": ["torchrun", "t.py"]}]}}
    return {
        "kind": "PyTorchJob",
        "metadata": {"name": "a"},
        "spec": {
            "pytorchReplicaSpecs": {"Worker": {"replicas": replicas, "template": template}},
            "elasticPolicy": policy,
            "runPolicy": run or {},
            "nprocPerNode": processes,
        },
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (elastic(0), "replicas is 0: expected 1 to 5000"),
        (
            elastic(9, maxReplicas=8),
            "replicas is 9 and maxReplicas is 8: expected maxReplicas to be at least",
        ),
        (elastic(9, minReplicas=3, maxReplicas=2), "minReplicas is 3 and maxReplicas is 2: expected"),
        (elastic(minReplicas=3), "minReplicas is 3 and replicas is 2: expected replicas to be at least"),
        (elastic(maxRestarts=-1), "failurePolicy.application.maxRestarts is -1: expected 0 to 10000"),
        (elastic(processes="$(N)"), "nprocPerNode is '$(N)': expected 1 to 99999, or one of auto, gpu"),
        (elastic(run={"cleanPodPolicy": "Some"}), "cleanPodPolicy is 'Some': expected one of Running"),
        (elastic(run={"activeDeadlineSeconds": 0}), "activeDeadlineSeconds is 0: expected 1 to 2147483647"),
    ],
)
def test_what_the_api_server_would_refuse_is_named(body: dict[str, Any], said: str) -> None:
    result = call("-", given=json.dumps(body))
    assert isinstance(result.exception, ClientError)
    assert str(result.exception).startswith("PyTorchJob a cannot be converted: the API server would refuse")
    assert said in str(result.exception)
    assert result.stdout == ""


def test_the_limits_are_those_of_the_resource() -> None:
    (file,) = (ROOT / "crds").glob("*.yaml")
    version = yaml.safe_load(file.read_text())["spec"]["versions"][0]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for name, found in limits.NUMBERS.items():
        assert found == (fields[name]["minimum"], fields[name]["maximum"]), name
    restarts = fields["failurePolicy"]["properties"]["application"]["properties"]["maxRestarts"]
    assert (restarts["minimum"], restarts["maximum"]) == limits.RESTARTS
    assert set(limits.POLICIES) == {str(one) for one in fields["cleanPodPolicy"]["enum"]}
    assert str(list(limits.PROCESSES)) in fields["nprocPerNode"]["x-kubernetes-validations"][1]["rule"]


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "pytorchjob.yaml").write_text((MANIFESTS / "pytorchjob-elastic.yaml").read_text())
    runtime, body = manifests("trainjob.yaml")
    (tmp_path / "trainjob.yaml").write_text(yaml.safe_dump(body))
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script(ROOT / PAGE[0], PAGE[1])],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "KUBECONFIG": "/nowhere"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "is not among the files" not in said.stderr
    made = list(yaml.safe_load_all((tmp_path / "elasticjob.yaml").read_text()))
    assert [one["kind"] for one in made] == ["ElasticJob", "HorizontalPodAutoscaler"]


def call(*words: str, given: str = "") -> Any:
    return CliRunner().invoke(program, ["convert", *words], input=given)


def test_the_command_reads_lists_and_says_what_it_left_out() -> None:
    bodies = manifests("trainjob.yaml") + manifests("pytorchjob-master.yaml")
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": bodies})
    found = call("-", given=listed)
    assert found.exit_code == 0, found.output
    assert [job["kind"] for job in yaml.safe_load_all(found.stdout)] == ["ElasticJob", "ElasticJob"]
    assert "TrainJob llm: podGroupPolicy: left out" in found.stderr
    assert json.loads(call("-", "-o", "json", given=listed).stdout)["kind"] == "List"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("kind: Pod", "found Pod, expected a PyTorchJob or a TrainJob"),
        ("", "found nothing, expected"),
        ("a: [", "is not YAML"),
        ("a: 1", "is no Kubernetes object"),
        ("kind: PyTorchJob\nmetadata: {name: a}", "has neither Master nor Worker"),
        ("kind: PyTorchJob\nmetadata: {name: A.b}", "cannot be the name of a new job"),
        ("kind: PyTorchJob\nmetadata: {name: a}\nspec: 3", "PyTorchJob a cannot be converted"),
    ],
)
def test_what_cannot_be_converted_is_named(given: str, says: str) -> None:
    found = call("-", given=given)
    assert isinstance(found.exception, ClientError)
    assert says in str(found.exception)
