"""Pods as users shape them: restricted ones, on the host's network, beside others, in images of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devcluster.kubelet.cluster import KubeletCluster
from tests.nodes import base_images
from tests.nodes.job import NodesJob, on_node

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_a_user_trains_on_a_read_only_root(new_job: Callable[..., NodesJob], cluster: KubeletCluster) -> None:
    """In a namespace that enforces the Pod Security Standard `restricted`."""
    job = new_job()
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", job.namespace, enforce)
    job.apply(container={"securityContext": RESTRICTED}, epochs=5)
    job.complete()
    assert job.steps()[-1]["world_size"] == 2
    job.trained_in_one_round()


def test_pods_on_the_network_of_their_nodes(
    new_job: Callable[..., NodesJob], cluster: KubeletCluster
) -> None:
    job = new_job()
    job.apply(pod={"hostNetwork": True})
    job.training(members=2)
    addresses = {pod["status"]["podIP"] for pod in job.pods().values()}
    assert addresses == {node.address for node in cluster.nodes.values()}
    assert job.goes_on() == 1


def test_two_jobs_on_one_node(new_job: Callable[..., NodesJob]) -> None:
    first, second = new_job("first"), new_job("second")
    for job in (first, second):
        job.apply(pod=on_node("node-a"))
    for job in (first, second):
        job.training(members=2)
        assert {job.node_of(pod) for pod in job.pods()} == {"node-a"}
    for job in (first, second):
        assert job.goes_on() == 1


@pytest.fixture(params=base_images.PYTHONS, ids=str)
def python(request: pytest.FixtureRequest) -> base_images.Python:
    """A Python with a torch."""
    found: base_images.Python = request.param
    return found


@pytest.fixture
def python_image(python: base_images.Python, kubelets: KubeletCluster) -> str:
    """The name by which pods pull an image with it."""
    return python.provide(kubelets.images)


@pytest.mark.timeout(900)  # with the set-up: packages of that Python
def test_the_handler_in_images_of_others(
    python: base_images.Python, python_image: str, new_job: Callable[..., NodesJob]
) -> None:
    """The oldest Python with the oldest torch, and the newest with the newest."""
    job = new_job()
    job.host_folders[base_images.PACKAGES] = python.folder
    job.apply(container={"image": python_image, **python.container}, epochs=3)
    job.complete()
    assert job.steps()[-1]["world_size"] == 2
    job.trained_in_one_round()
