"""What doctor says of a job: its command, image, backend and resources."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from click.testing import Result

from elasticjob_client.explain.checks import Check
from elasticjob_client.explain.status import next_steps
from elasticjob_client.explain.template import checks, training_container
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from tests.unit.client.conftest import container, core_pod
from tests.unit.client.made import NOW, after_a_loss, ago, conditions, job, pod
from tests.unit.client.server import JOBS, PODS, Server, refusal
from tests.unit.test_accelerators import RESOURCES

GPU = "nvidia.com/gpu"
COMMAND = ["torchrun", "t.py"]


def made(spec: dict[str, Any] | None = None, **fields: Any) -> ElasticJob:
    """A job with this container."""
    train = {"name": "train", "image": "pytorch/pytorch:2.6.0", "command": COMMAND, **fields}
    return job(None, template={"spec": {"containers": [train]}}, **(spec or {}))


def told(found: list[Check], subject: str) -> Check:
    """Of these checks the one of the subject; all that are not ok say what to do."""
    assert [check.subject for check in found if check.result != "ok" and not check.advice] == []
    (one,) = [check for check in found if check.subject == subject]
    return one


def test_a_command_that_has_joined_is_right_whatever_it_looks_like() -> None:
    template = {"spec": {"containers": [{"name": "train", "image": "own:1", "command": ["./start"]}]}}
    seen = job({"roundHistory": [{"number": 1, "members": 2}]}, template=template)
    found = checks(seen, [])
    assert {told(found, one).result for one in ("command", "handler", "python", "torch")} == {"ok"}
    found = checks(job({}, template=template), [])
    assert {told(found, one).result for one in ("command", "python", "torch")} == {"unknown"}


def test_the_images_own_command_is_not_seen() -> None:
    check = told(checks(made(command=None), []), "command")
    assert (check.result, check.advice) == ("unknown", "set command: [torchrun, train.py]")


@pytest.mark.parametrize(
    ("image", "subject", "result"),
    [
        ("python:3.9-slim", "python", "failed"),
        ("python:3.12", "python", "ok"),
        ("registry:5000/train:py38-cu118", "python", "failed"),
        ("team/train:1.4", "python", "unknown"),
        ("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", "torch", "failed"),
        ("pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime", "torch", "failed"),
        ("pytorch/pytorch:2.6.0@sha256:0123", "torch", "ok"),
        ("nvcr.io/nvidia/pytorch:24.05-py3", "torch", "unknown"),
        ("team/torchvision:0.15", "torch", "unknown"),
    ],
)
def test_versions_are_read_from_the_images_name(image: str, subject: str, result: str) -> None:
    assert told(checks(made(image=image), []), subject).result == result


def test_torch_2_4_needs_a_command_of_its_own() -> None:
    command = ["python", "-m", "elasticjob.run", "t.py"]
    assert told(checks(made(image="pytorch/pytorch:2.4.1", command=command), []), "torch").result == "ok"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ValueError: The rendezvous backend 'k8s' is not registered. Did you forget", "the backend k8s"),
        ("/usr/bin/python: No module named torch", "the image has no torch"),
        ("exec: torchrun: not found", "no torchrun in PATH"),
    ],
)
def test_a_log_tells_of_the_backend(line: str, said: str) -> None:
    check = told(checks(made(), [], ["something", line]), "handler")
    assert check.result == "failed"
    assert said in check.found


NO_COPY = (
    "mnist-0-0 ended before it joined: init container elasticjob-handler ended with exit code 1: cp: cannot "
    "stat '/opt/elasticjob/site'"
)


@pytest.mark.parametrize(("joined", "state"), [(False, "Starting"), (True, "Waiting")])
def test_a_handler_that_could_not_be_installed_is_not_all_right(joined: bool, state: str) -> None:
    """Also where pods have joined before, with another image of it."""
    template = made().spec.template
    failure = {"podName": "mnist-0-0", "podUID": "u", "message": NO_COPY, "time": ago(9)}
    history = msgspec.to_builtins(after_a_loss().status)["roundHistory"]
    status = {
        "conditions": conditions(state, "no pods"),
        "lastFailure": failure,
        "roundHistory": history if joined else [],
    }
    check = told(checks(job(status, template=template), []), "handler")
    assert (check.result, check.found) == ("failed", NO_COPY)
    assert "handler.image" in check.advice
    trains = {**status, "roundHistory": history, "conditions": conditions("Training", "round 2")}
    assert told(checks(job(trains, template=template), []), "handler").result == "ok"


def test_an_image_that_shall_have_the_handler_is_not_looked_into() -> None:
    assert told(checks(made(), []), "handler").found == "an init container adds it to each pod"
    assert told(checks(made({"handlerSource": "Image"}), []), "handler").result == "unknown"


@pytest.mark.parametrize(
    ("processes", "gpus", "result"),
    [(8, 4, "failed"), (2, 4, "unknown"), (4, 4, None), ("gpu", 0, "failed"), ("gpu", 4, None), (8, 0, None)],
)
def test_processes_and_gpus_fit(processes: int | str, gpus: int, result: str | None) -> None:
    asked = made({"nprocPerNode": processes}, resources={"limits": {GPU: gpus} if gpus else {}})
    found = [check.result for check in checks(asked, []) if check.subject == "processes"]
    assert found == ([result] if result else [])


@pytest.mark.parametrize(("resource", "quantity", "workers", "uncounted"), RESOURCES)
def test_a_worker_for_each_gpu_needs_gpus_that_torch_counts(
    resource: str, quantity: object, workers: str, uncounted: bool
) -> None:
    """As the operator counts them."""
    asked = made({"nprocPerNode": "gpu"}, resources={"limits": {resource: quantity, "memory": "1Gi"}})
    found = [check for check in checks(asked, []) if check.subject == "processes"]
    assert [check.result for check in found] == (
        [] if workers == "gpu" else ["unknown" if uncounted else "failed"]
    )
    if uncounted:
        assert (
            found[0].found == f"nprocPerNode: gpu, and whether torch counts resource {resource} is not known"
        )


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ({"resourceClaimTemplateName": "eight"}, "ResourceClaimTemplate eight"),
        ({"resourceClaimName": "all"}, "ResourceClaim all"),
    ],
)
def test_devices_that_are_claimed_are_not_missing(claim: dict[str, str], name: str) -> None:
    asked = made({"nprocPerNode": "gpu"}, resources={"claims": [{"name": "gpus"}]})
    template = asked.spec.template or {}
    template["spec"]["resourceClaims"] = [{"name": "gpus", **claim}]
    check = told(checks(asked, []), "processes")
    assert (check.result, name in check.found) == ("unknown", True)
    with_number = msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, nproc_per_node=8))
    assert all(check.subject != "processes" for check in checks(with_number, []))


@pytest.mark.parametrize("quantity", ["1e999999", "9" * 400, "many", "0.5"])
def test_an_absurd_number_of_gpus_is_compared_with_nothing(quantity: str) -> None:
    asked = made({"nprocPerNode": 8}, resources={"limits": {GPU: quantity}})
    assert all(check.subject != "processes" for check in checks(asked, []))


def test_none_of_one_vendors_gpus_does_not_hide_anothers() -> None:
    asked = made({"nprocPerNode": 8}, resources={"limits": {GPU: 0, "amd.com/gpu": 4}})
    assert told(checks(asked, []), "processes").result == "failed"


def test_resources_are_named() -> None:
    asked = {"requests": {"cpu": "4"}, "limits": {GPU: "8"}}
    assert told(checks(made(resources=asked), []), "resources").found == f"cpu 4, {GPU} 8"
    assert told(checks(made(), []), "resources").result == "unknown"


def test_pods_say_whether_the_image_was_pulled() -> None:
    def away(container: str) -> Pod:
        why = "ImagePullBackOff: no such image"
        return pod("mnist-1-0", "Pending", waiting=why, waiting_container=container)

    check = told(checks(made(), [pod("mnist-0-0"), away("train")]), "image")
    assert (check.result, check.found) == ("failed", "mnist-1-0: ImagePullBackOff: no such image")
    check = told(checks(made(), [away("log")]), "image")
    assert check.found == "mnist-1-0, container log: ImagePullBackOff: no such image"
    assert "imagePullSecrets in the template" in check.advice
    check = told(checks(made(), [away("elasticjob-handler")]), "image")
    assert check.found.startswith("mnist-1-0, container elasticjob-handler: ")
    assert "handler.image" in check.advice
    assert told(checks(made(image="own"), []), "image").result == "unknown"
    full = [pod(f"mnist-{n}-0", "Pending", waiting="Unschedulable: 0/2 nodes") for n in (0, 1)]
    check = told(checks(made(), full), "pods")
    assert (check.result, check.found) == ("unknown", "mnist-0-0 and 1 more: Unschedulable: 0/2 nodes")
    wrong = pod("mnist-0-0", "Pending", waiting="CreateContainerConfigError: secret is missing")
    assert told(checks(made(), [wrong]), "pods").result == "failed"


UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
MISSING = '0/3 nodes are available: persistentvolumeclaim "checkpoints" not found. preemption: 0/3'
ELSEWHERE = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had volume node affinity conflict."
NO_VOLUME = "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."
TAINTED = "0/3 nodes are available: 3 node(s) had untolerated taint(s)."
SELECTED = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
FULL = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    ("words", "result", "advice"),
    [
        (UNBOUND, "unknown", "a claim is not bound to a volume: `kubectl describe pvc checkpoints` says why"),
        (MISSING, "failed", "create the PersistentVolumeClaim checkpoints"),
        (ELSEWHERE, "unknown", "claim storage that all nodes share"),
        (NO_VOLUME, "unknown", "a claim is not bound to a volume"),
        (TAINTED, "unknown", "see its nodeSelector, affinity and tolerations"),
        (SELECTED, "unknown", "see its nodeSelector, affinity and tolerations"),
        (FULL, "unknown", "ask for less"),
    ],
)
def test_a_pod_may_have_no_node_for_other_reasons_than_room(words: str, result: str, advice: str) -> None:
    claim = {"name": "c", "persistentVolumeClaim": {"claimName": "checkpoints"}}
    asked = made()
    assert asked.spec.template
    asked.spec.template["spec"]["volumes"] = [{"name": "shm", "emptyDir": {}}, claim]
    waits = [pod("mnist-0-0", "Pending", waiting=f"Unschedulable: {words}")]
    check = told(checks(asked, waits), "pods")
    assert (check.result, advice in check.advice) == (result, True), check
    status = {"conditions": conditions("WaitingForPods", "0 of 2 pods")}
    (step,) = next_steps(job(status, template=asked.spec.template), waits, NOW)
    assert ("no node has room for all pods" in step) == (words == FULL), step
    assert advice in step or words == FULL


def test_the_training_container_is_the_one_that_is_named() -> None:
    template: dict[str, Any] = {"spec": {"containers": [{"name": "log"}, {"name": "train"}]}}
    assert training_container(template)["name"] == "log"
    template["metadata"] = {"annotations": {"kubectl.kubernetes.io/default-container": "train"}}
    assert training_container(template)["name"] == "train"


def test_pods_of_others_are_not_looked_at() -> None:
    (check,) = checks(after_a_loss(), [])
    assert (check.subject, check.result) == ("template", "unknown")
    assert "docs/use/own-pods.md" in check.advice


def test_the_command_reads_the_log_of_a_pod_that_has_not_joined(
    server: Server, run: Callable[..., Result]
) -> None:
    train = {"name": "train", "image": "own:1", "command": COMMAND}
    server.answers[f"{JOBS}/mnist"]["spec"]["template"] = {"spec": {"containers": [train]}}
    server.answers[f"{JOBS}/mnist"]["status"] = {}
    ended = {"terminated": {"exitCode": 1, "startedAt": ago(900), "finishedAt": ago(120)}}
    server.answers[PODS]["items"] = [
        core_pod("mnist-1-0", "b", phase="Failed", containerStatuses=[container(ended)])
    ]
    server.answers[f"{PODS}/mnist-1-0/log"] = "python: No module named torch\n"
    result = run("doctor", "mnist", "-o", "json")
    assert result.exit_code == 1, result.exception
    found = {check["subject"]: check for check in json.loads(result.stdout)["items"]}
    assert found["handler"]["result"] == "failed"
    assert found["command"]["found"] == "`torchrun t.py`"
    assert "FAILED  handler" in run("doctor", "mnist").stdout


@pytest.mark.parametrize(
    ("path", "subject", "found"),
    [
        (PODS, "pods", 'cannot list the pods of ElasticJob research/mnist: User "jane" cannot'),
        (f"{PODS}/mnist-1-0/log", "logs", 'cannot read the log of pod mnist-1-0: User "jane" cannot'),
    ],
)
def test_doctor_of_a_job_goes_on_without_a_right(
    server: Server, run: Callable[..., Result], path: str, subject: str, found: str
) -> None:
    train = {"name": "train", "image": "own:1", "command": ["python", "t.py"]}
    server.answers[f"{JOBS}/mnist"]["spec"]["template"] = {"spec": {"containers": [train]}}
    server.answers[f"{JOBS}/mnist"]["status"].update(participants=[], roundHistory=[])
    server.answers[path] = refusal(403, "Forbidden", 'User "jane" cannot')
    result = run("doctor", "mnist", "-o", "json")
    assert result.exit_code == 1, result.exception
    seen = {check["subject"]: check for check in json.loads(result.stdout)["items"]}
    assert (seen[subject]["result"], seen[subject]["found"]) == ("unknown", found)
    assert (seen["state"]["result"], seen["command"]["result"]) == ("ok", "failed")
    if subject == "pods":
        assert seen["image"]["found"] == "own:1: whether pods can pull it is not seen"
