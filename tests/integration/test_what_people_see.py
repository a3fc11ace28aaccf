"""What ``kubectl get``, ``wait`` and ``describe`` say of a job, with the real operator and control plane."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from elasticjob_operator.settings import HANDLER_IMAGE
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

ENFORCE = "pod-security.kubernetes.io/enforce"


def columns(job: PlayedJob) -> dict[str, str]:
    """The row that ``kubectl get -o wide`` shows."""
    header, row = job.kubectl("get", "ej", job.name, "-o", "wide").splitlines()
    names = re.split(r"\s{2,}", header.strip())
    starts = [header.index(name) for name in names]
    ends = [*starts[1:], None]
    return {n: row[s:e].strip() for n, s, e in zip(names, starts, ends, strict=True)}


def events(job: PlayedJob) -> list[str]:
    """The Events in the order in which ``kubectl describe`` shows them: reason, age and count, message."""
    text = job.kubectl("describe", "ej", job.name)
    lines = text.partition("\nEvents:")[2].splitlines()
    found = []
    for line in lines:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == 5 and cells[0] in ("Normal", "Warning"):
            found.append(f"{cells[1]} | {cells[2]} | {cells[4]}")
    return found


# shows: the API server rejects pods (quota, admission, a webhook that is down or hangs, 429, ...
# shows: gets by an ElasticJob what a pod would not give
def test_pods_that_the_api_server_refuses_stand_in_the_condition_with_its_words(job: PlayedJob) -> None:
    job.kubectl("label", "namespace", job.namespace, f"{ENFORCE}=restricted")
    job.apply()
    text = job.says("cannot be created")
    assert "no pod can start: job-0-0, job-1-0: cannot be created: violates PodSecurity" in text
    assert columns(job)["STATE"] == "WaitingForPods"

    def repeated() -> bool:
        refused = [event for event in events(job) if event.startswith("PodRejected")]
        return len(refused) == 2 and all(re.search(r"\(x[2-9] over ", event) for event in refused)

    job.wait_for(repeated, "each refusal is one Event that counts")
    job.kubectl("label", "namespace", job.namespace, f"{ENFORCE}-")
    job.runs("job-0-0", "job-1-0")
    job.says("waiting for job-")
    job.wait_for(lambda: "cannot be created" not in job.condition("Training")["message"], "that is over")


# shows: the API server rejects pods (quota, admission, a webhook that is down or hangs, 429, ...
def test_pods_with_a_field_newer_than_the_server_stand_in_the_condition(job: PlayedJob) -> None:
    if job.cluster.kubectl("explain", "pod.spec.hostnameOverride", check=False).returncode == 0:
        pytest.skip("this server knows every field that a template can have")
    job.apply(pod={"hostnameOverride": "somebody"})
    text = job.says("cannot be created")
    assert "job-0-0, job-1-0: cannot be created: " in text
    assert 'unknown field "spec.hostnameOverride"' in text


def test_pods_that_cannot_be_scheduled_stand_in_the_condition_with_the_schedulers_words(
    job: PlayedJob,
) -> None:
    job.apply(pod={"nodeSelector": {"gpu": "none-has-it"}})
    text = job.says("nodes are available")
    why = r"no pod can start: job-0-0, job-1-0: not scheduled \(nodeSelector gpu=none-has-it\): 0/\d+ nodes"
    assert re.search(why + r" are available: .* didn't match Pod's node", text)
    job.reads("Training", "WaitingForPods")
    row = columns(job)
    assert (row["STATE"], row["MEMBERS"], row["REPLICAS"]) == ("WaitingForPods", "0", "2")


# shows: the handler's image cannot be pulled
# shows: the handler's init container fails, because its image is broken
def test_init_containers_that_do_not_start_or_fail_stand_in_the_condition(
    job: PlayedJob, installed: Cluster
) -> None:
    """They are the operator's: an image of the handler that is broken fails no job by the script's limit."""
    installed.remove_image(HANDLER_IMAGE)
    limits = {"application": {"maxRestarts": 0}, "infrastructure": {"maxRestarts": 2}}
    try:
        job.apply(handlerSource="Injected", failurePolicy=limits)
        text = job.says("ErrImagePull")
    finally:
        installed.add_image(HANDLER_IMAGE, "/usr/bin")  # which has no handler to copy
    assert f"job-0-0, job-1-0: ErrImagePull: no environment for image {HANDLER_IMAGE!r}" in text
    job.is_true("Failed")
    charged = job.status()["lastFailure"]
    ended = "ended before it joined: init container elasticjob-handler ended with exit code 1: cp: "
    assert ended in charged["message"], "and what cp has said"
    assert charged["message"].endswith("check handler.image of its chart")
    assert charged["message"] in job.condition("Failed")["message"]
    assert job.condition("Failed")["reason"] == "InfrastructureRestartsExhausted"
    assert job.charges()["application"] == 0
    assert "excludedNodes" not in job.status(), "no node is to blame"
    job.wait_for(
        lambda: any(event.startswith("PodEndedEarly") and ended in event for event in events(job)),
        "an Event says so, too",
    )
    assert charged["logsCommand"].endswith(" -c elasticjob-handler")


def workers(job: PlayedJob) -> set[str]:
    """What the pods say to torchrun of the number of workers."""
    containers = [pod["spec"]["containers"][0] for pod in job.pods().values()]
    return {e["value"] for c in containers for e in c["env"] if e["name"] == "PET_NPROC_PER_NODE"}


@pytest.mark.parametrize(("quantity", "counted"), [("0", "1"), ("2", "gpu")])
def test_a_resource_of_gpus_counts_by_its_quantity(job: PlayedJob, quantity: str, counted: str) -> None:
    """A template that many teams share has the resource, with 0 where none is wanted."""
    limits = {"limits": {"nvidia.com/gpu": quantity}}
    job.apply(pod={"containers": [{"name": "train", "image": "elasticjob-test", "resources": limits}]})
    job.wait_for(lambda: len(job.pods()) == 2, "the pods are made")
    assert workers(job) == {counted}


def test_workers_are_counted_by_a_claim_or_the_condition_says_that_they_are_not(job: PlayedJob) -> None:
    """No node has these devices: the pods wait, as they were made."""
    if "resourceclaimtemplates" not in job.kubectl("api-resources", "--api-group=resource.k8s.io"):
        pytest.skip("this server has no such claims")
    api = job.kubectl("api-resources", "--api-group=resource.k8s.io", "-o", "wide").split("resource.k8s.io/")[
        1
    ]
    version = f"resource.k8s.io/{api.split()[0]}"

    def claims(device_class: str) -> dict[str, Any]:
        devices = {"requests": [{"name": "gpus", "exactly": {"deviceClassName": device_class, "count": 8}}]}
        meta = {"name": "eight"}
        return {
            "apiVersion": version,
            "kind": "ResourceClaimTemplate",
            "metadata": meta,
            "spec": {"spec": {"devices": devices}},
        }

    uses = {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}],
        "containers": [
            {"name": "train", "image": "elasticjob-test", "resources": {"claims": [{"name": "gpus"}]}}
        ],
    }
    job.apply(pod=uses)
    assert 'resourceclaimtemplates.resource.k8s.io "eight" not found' in job.says("cannot be read")
    assert not job.pods(), "they would have another number of workers than those made later"
    job.create(claims("gpu.nvidia.com"))
    job.wait_for(lambda: len(job.pods()) == 2, "the pods are made")
    assert workers(job) == {"gpu"}
    assert not job.events("GPUsNotCounted")
    job.delete()
    job.no_pods()

    job.kubectl("delete", "resourceclaimtemplate", "eight")
    job.create(claims("h100.example.com"))
    job.apply(pod=uses)
    text = job.says("cannot be counted; set nprocPerNode")
    assert "GPUs of ResourceClaimTemplate eight (device class h100.example.com)" in text
    assert workers(job) == {"1"}
    assert job.told("GPUsNotCounted")[0] in text


@pytest.mark.parametrize("least", [{"cpu": "500m"}, {"memory": "100Mi"}])
def test_a_limit_range_that_takes_the_template_takes_the_pods(job: PlayedJob, least: dict[str, str]) -> None:
    """Also where it demands more of each container than the handler's needs."""
    limits = [{"type": "Container", "min": least, "maxLimitRequestRatio": {"cpu": "2"}}]
    meta = {"name": "limits"}
    job.create({"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": {"limits": limits}})
    asked = {"cpu": "1", "memory": "200Mi"}
    resources = {"requests": asked, "limits": asked}
    container = {"name": "train", "image": "elasticjob-test", "resources": resources}
    job.apply(handlerSource="Injected", pod={"containers": [container]})
    job.wait_for(lambda: len(job.pods()) == 2, "the pods are made")
    for pod in job.pods().values():
        assert pod["spec"]["initContainers"][0]["resources"] == resources
    whose = "init container elasticjob-handler, which the operator adds"
    assert any(whose in said for said in job.told("PodRejected"))


def test_a_job_from_its_first_round_to_its_end(job: PlayedJob, tmp_path: Path) -> None:
    job.apply(f"trap 'exit 143' TERM; while [ ! -e {tmp_path}/stop ]; do sleep 0.2; done")
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    row = columns(job)
    assert (row["STATE"], row["MEMBERS"], row["ROUND"], row["RESTARTS"]) == ("Training", "2", "1", "0")
    assert (row["LEADER"], row["CAUSE"], row["STEP"], row["GOODPUT(%)"]) == ("job-0-0", "Started", "", "")
    assert job.condition("Training")["message"] == "round 1 with 2 members, leader job-0-0"
    (tmp_path / "stop").touch()
    job.is_true("Complete")
    assert columns(job)["STATE"] == "Complete"
    kinds = [(c["type"], c["status"], c["reason"]) for c in job.status()["conditions"]]
    assert kinds == [
        ("Training", "False", "Complete"),
        ("Suspended", "False", "NotSuspended"),
        ("Complete", "True", "Succeeded"),
        ("Failed", "False", "JobComplete"),
        ("Reconciling", "False", "Complete"),
        ("Stalled", "False", "NotStalled"),
    ]
    job.wait_for(lambda: len(events(job)) == 3, "all Events are there")
    assert [event.partition(" | ")[0] for event in events(job)] == [
        "RoundPublished",
        "RoundEstablished",
        "JobComplete",
    ]
    told = job.kubectl("describe", "ej", job.name)
    assert "Charges" not in told  # there were none


def test_kubectl_waits_for_each_condition(job: PlayedJob, tmp_path: Path) -> None:
    """In either state, at each stage of a job; and for its end, whatever that is."""

    def wait(**said: str) -> None:
        for kind, status in said.items():
            job.kubectl("wait", f"ej/{job.name}", f"--for=condition={kind}={status}", "--timeout=30s")

    job.apply(f"trap 'exit 143' TERM; while [ ! -e {tmp_path}/stop ]; do sleep 0.2; done")
    wait(Training="False", Reconciling="True", Stalled="False", Complete="False", Failed="False")
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    wait(Training="True", Suspended="False", Reconciling="False", Stalled="False")
    job.patch(suspend=True)
    wait(Training="False", Suspended="True", Reconciling="False", Stalled="False")
    job.patch(suspend=False)
    wait(Suspended="False", Reconciling="True")
    job.runs("job-0-1", "job-1-1")
    job.join("job-0-1", "job-1-1")
    job.round(2)
    (tmp_path / "stop").touch()
    wait(Complete="True", Failed="False", Training="False", Reconciling="False", Stalled="False")
    job.kubectl("wait", f"ej/{job.name}", "--for=jsonpath={.status.terminalState}", "--timeout=30s")
    job.delete()
    job.apply("exit 1", failurePolicy={"application": {"maxRestarts": 0}})
    wait(Failed="True", Complete="False", Stalled="True", Reconciling="False")
    job.kubectl("wait", f"ej/{job.name}", "--for=jsonpath={.status.terminalState}", "--timeout=30s")


def test_a_planned_end_of_a_round_is_no_warning(job: PlayedJob) -> None:
    job.apply()
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    job.patch(suspend=True)

    def told() -> bool:
        reason = "--field-selector=reason=RoundBroken"
        text = job.kubectl("get", "events", reason, "-o", "jsonpath={..type}")
        return text == "Normal"

    job.wait_for(told, "the Event RoundBroken is there")
