"""What is read of pods, and which pods a rank means."""

from __future__ import annotations

import msgspec
from lightkube.models import core_v1

from elasticjob_client.pods import Pod, in_order, newest_of_slot, of, of_rank, ranks
from tests.unit.client.conftest import container, core_pod
from tests.unit.client.made import after_a_loss, job, pod


def read(name: str = "mnist-1-0", **status: object) -> Pod:
    return of(msgspec.convert(core_pod(name, "b", **status), core_v1.Pod))


def test_a_pod_that_runs() -> None:
    found = read()
    assert (found.slot, found.node, found.container, found.state) == (1, "b", "train", "Running")


def test_a_pod_that_cannot_be_scheduled_says_so() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    found = read(phase="Pending", conditions=[condition])
    assert (found.waiting, found.state) == ("Unschedulable: 0/3 nodes", "Unschedulable")


def test_a_pod_whose_image_cannot_be_pulled_says_so() -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    found = read(phase="Pending", containerStatuses=[container(state)])
    assert (found.waiting_container, found.waiting) == ("train", "ErrImagePull: no such image")
    installs = {**container(state), "name": "elasticjob-handler"}
    found = read(phase="Pending", initContainerStatuses=[installs], containerStatuses=[container({})])
    assert (found.waiting_container, found.container) == ("elasticjob-handler", "train")


def test_the_training_container_is_the_annotated_one() -> None:
    body = core_pod("mnist-1-0", "b")
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "main"}
    body["spec"]["containers"] = [{"name": "proxy"}, {"name": "main"}]
    assert of(msgspec.convert(body, core_v1.Pod)).container == "main"


def test_pods_of_a_slot_are_in_the_order_in_which_they_were_made() -> None:
    pods = [read("mnist-1-0"), read("mnist-1-1"), read("mnist-0-0")]
    assert [p.name for p in in_order(pods)] == ["mnist-0-0", "mnist-1-0", "mnist-1-1"]
    newest = newest_of_slot(pods, 1)
    assert newest is not None
    assert newest.name == "mnist-1-1"


def test_a_rank_means_its_pod_and_those_that_its_slot_had_before() -> None:
    pods = [pod("mnist-0-0"), pod("mnist-1-0", "Failed"), pod("mnist-1-1"), pod("mnist-2-0")]
    assert [p.name for p in of_rank(after_a_loss(), pods, 1)] == ["mnist-1-0", "mnist-1-1"]
    assert of_rank(after_a_loss(), pods, 2) == []
    assert ranks(after_a_loss()) == {"mnist-0-0": 0, "mnist-1-1": 1}


def test_before_the_first_round_a_rank_is_a_slot() -> None:
    assert [p.name for p in of_rank(job(None), [pod("mnist-0-0"), pod("mnist-1-0")], 1)] == ["mnist-1-0"]
