"""The handler's few calls against a real API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from devcluster import crd
from devcluster.access import ClusterAccess
from elasticjob.api.connection import connect
from elasticjob.api.errors import Conflict, NotFound
from elasticjob.api.leases import HttpLeaseApi, Lease
from elasticjob.contract.names import GROUP
from elasticjob.leases.writer import LeaseWriter

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "crds" / "elasticjobs.elasticjob.dev.yaml"


@pytest.fixture
def api(cluster: ClusterAccess, namespace: str) -> Iterator[HttpLeaseApi]:
    made = HttpLeaseApi(connect(str(cluster.kubeconfig)), namespace)
    yield made
    made.stop()


def lease(name: str, holder: str = "uid", **annotations: str) -> dict[str, object]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "annotations": {f"{GROUP}/{k}": v for k, v in annotations.items()}},
        "spec": {"holderIdentity": holder, "renewTime": "2026-01-01T00:00:00.000000Z"},
    }


@pytest.fixture
def pod(cluster: ClusterAccess, namespace: str) -> str:
    """UID of a pod named ``pod``, which no node runs: a Lease that names it as owner is not collected."""
    container = {"name": "x", "image": "x"}
    spec = {"containers": [container], "nodeSelector": {"no": "node"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(body))
    return cluster.kubectl("-n", namespace, "get", "pod", "pod", "-o", "jsonpath={.metadata.uid}").stdout


def test_a_watch_begins_with_the_present_state_and_sees_each_change(
    api: HttpLeaseApi, cluster: ClusterAccess, namespace: str
) -> None:
    seen: Queue[Lease | None] = Queue()

    def watch() -> None:
        for found in api.watch("job-round"):
            seen.put(found)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert seen.get(timeout=60) is None, "the watch is open"

    def changed() -> Lease:
        while (found := seen.get(timeout=60)) is None:
            pass  # a bookmark
        return found

    api.take_over("other", lease("other"))
    made = api.take_over("job-round", lease("job-round", round="one"))
    first = changed()
    assert (first.resource_version, first.annotations[f"{GROUP}/round"]) == (made.resource_version, "one")
    api.patch("job-round", {"metadata": {"annotations": {f"{GROUP}/round": "two"}}})
    second = changed()
    assert second.annotations[f"{GROUP}/round"] == "two"
    assert not second.deleted
    cluster.kubectl("-n", namespace, "delete", "lease", "job-round")
    assert changed().deleted
    api.stop()
    thread.join(60)
    assert not thread.is_alive(), "stop ends the watch"


def test_a_write_on_something_older_is_a_conflict(api: HttpLeaseApi) -> None:
    first = api.take_over("pod", lease("pod", participant="a"))
    second = api.take_over("pod", lease("pod", "uid-2", participant="b"))
    assert (second.holder, second.annotations[f"{GROUP}/participant"]) == ("uid-2", "b")
    with pytest.raises(Conflict):
        api.patch("pod", {"metadata": {"resourceVersion": first.resource_version, "annotations": {"x": "y"}}})
    with pytest.raises(NotFound):
        api.patch("absent", {"metadata": {"annotations": {"x": "y"}}})
    assert api.read("pod").resource_version == second.resource_version


def test_a_second_process_of_the_pod_supersedes_the_first(api: HttpLeaseApi, pod: str) -> None:
    first = LeaseWriter(api, "pod", pod, {f"{GROUP}/job-name": "job"})
    first.write(participant="one")
    assert first.flush(60)
    second = LeaseWriter(api, "pod", pod, {f"{GROUP}/job-name": "job"})
    second.write(participant="two")
    assert second.flush(60)
    first.write(participant="three")
    assert first.flush(60)
    assert "another process" in first.superseded
    assert api.read("pod").annotations[f"{GROUP}/participant"] == "two"
    first.stop()
    second.stop()


def test_what_a_torchrun_has_finished_stays_when_the_next_in_its_pod_takes_the_lease_over(
    api: HttpLeaseApi, pod: str
) -> None:
    """No reader may have looked in between. What the first has said with its first write is the second's."""
    first, second = (LeaseWriter(api, "pod", pod, {f"{GROUP}/job-name": "job"}) for _ in range(2))
    first.write(participant="one")
    assert first.flush(60)
    first.write(participant="succeeded", finished="nonce")
    assert first.flush(60)
    first.stop()
    second.write(participant="two")
    assert second.flush(60)
    second.write(participant="three")
    assert second.flush(60)
    second.stop()
    said = api.read("pod").annotations
    assert (said[f"{GROUP}/participant"], said[f"{GROUP}/finished"]) == ("three", "nonce")


def test_a_lease_that_was_deleted_is_made_again(
    api: HttpLeaseApi, cluster: ClusterAccess, namespace: str, pod: str
) -> None:
    writer = LeaseWriter(api, "pod", pod, {f"{GROUP}/job-name": "job"})
    writer.write(participant="one")
    assert writer.flush(60)
    cluster.kubectl("-n", namespace, "delete", "lease", "pod")
    writer.write(participant="two")
    assert writer.flush(60)
    assert api.read("pod").annotations[f"{GROUP}/participant"] == "two"
    writer.stop()


def test_the_api_server_keeps_no_account_of_a_lease_s_fields(
    api: HttpLeaseApi, cluster: ClusterAccess, namespace: str, pod: str
) -> None:
    """It costs a third of each write. Of who takes a Lease over it is kept until the next write."""

    def managed() -> str:
        template = "-o=jsonpath={.metadata.managedFields}"
        return cluster.kubectl(
            "-n", namespace, "get", "lease", "pod", "--show-managed-fields", template
        ).stdout

    for process in ("one", "two"):
        writer = LeaseWriter(api, "pod", pod, {f"{GROUP}/job-name": "job"})
        writer.write(participant=process)
        assert writer.flush(60)
        assert managed()
        for text in ("joining", "in a round"):
            writer.write(participant=text)
            assert writer.flush(60)
            assert not managed()
            assert api.read("pod").annotations[f"{GROUP}/participant"] == text
        writer.stop()


def test_whether_there_is_a_job(api: HttpLeaseApi, cluster: ClusterAccess, namespace: str) -> None:
    crd.install(cluster, CRD)
    assert api.job_exists("mnist") is False
    job = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "mnist"},
        "spec": {},
    }
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(job))
    assert api.job_exists("mnist") is True
