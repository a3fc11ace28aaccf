"""The run's pods as a coordinator watches them: what it takes for the proof that one is gone (P3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from devcluster.wait import wait_for
from elasticjob.api.errors import ApiError, Forbidden
from elasticjob.api.listing import Change, HttpListApi
from elasticjob.coordination.directory import Seen
from elasticjob.coordination.pods import Pods
from elasticjob.peers.round_lease import Identity
from tests.unit.peers.watched import FORCED, LABEL, Watched

COUNT = itertools.count()
TERMINATING = {**FORCED, "deletionGracePeriodSeconds": 30}


def pod(name: str, labels: Mapping[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """One that runs."""
    own = {"name": name, "uid": f"uid-{name}", "labels": {LABEL: "mnist"} if labels is None else labels}
    return {"metadata": {**own, **metadata}, "status": {"phase": "Running"}}


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def pods(watched: Watched) -> Iterator[Pods]:
    """Those of pod a, which coordinates; b runs as well."""
    made = Pods("mnist", Identity("a", "uid-a"), lambda: cast(HttpListApi, watched), lambda: None)
    made.coordinate()
    watched.brings([pod("a"), pod("b")])
    yield made
    made.rest()


def names_after(pods: Pods, watched: Watched, *changes: Change) -> set[str]:
    """The live pods once these changes were seen; after them, pod z comes anew."""
    mark = f"uid-z{next(COUNT)}"
    watched.brings(*changes, Change(pod("z", uid=mark)))
    wait_for(lambda: (pods.live() or {}).get("z") == mark, 60, "the changes were seen", interval=0.01)
    return set(pods.live() or {}) - {"z"}


@pytest.mark.parametrize("labels", [{LABEL: "mnist"}, {}])
@pytest.mark.parametrize("metadata", [{}, TERMINATING])
def test_a_pod_that_loses_its_label_is_not_deleted(
    pods: Pods, watched: Watched, labels: dict[str, str], metadata: dict[str, Any]
) -> None:
    """A watch says DELETED of it, with the pod as it was before; whether with its label or without is not
    relied on. It may have its grace period before it."""
    body = pod("b", labels, **metadata)
    assert names_after(pods, watched, Change(body, deleted=True)) == {"a"}
    assert pods.gone({}) == {}


def test_a_pod_that_has_its_label_again_is_there_again(pods: Pods, watched: Watched) -> None:
    back = (Change(pod("b"), deleted=True), Change(pod("b")))
    assert names_after(pods, watched, *back) == {"a", "b"}
    assert pods.gone({}) == {}


def test_a_pod_that_is_deleted_is_gone(pods: Pods, watched: Watched) -> None:
    """Each deletion sets the grace period to 0 first, that by force and that of a pod on no node, too."""
    assert names_after(pods, watched, Change(pod("b", **FORCED), deleted=True)) == {"a"}
    assert pods.gone({}) == {"uid-b": "its pod was deleted"}
    another = pod("b", uid="uid-another")
    assert names_after(pods, watched, Change(another)) == {"a", "b"}
    assert pods.gone({}) == {"uid-b": "its pod was deleted"}


def test_pods_that_are_deleted_do_not_stay(pods: Pods, watched: Watched) -> None:
    """From the beginning of their grace period; one that has ended stays until it is deleted."""
    failed = {**pod("c"), "status": {"phase": "Failed"}}
    names_after(pods, watched, Change(pod("b", **TERMINATING)), Change(failed))
    assert (pods.staying() or set()) & {"uid-a", "uid-b", "uid-c"} == {"uid-a", "uid-c"}
    assert pods.gone({}) == {"uid-c": "its pod has failed"}


def test_a_pod_that_has_not_started_is_live_and_pending(pods: Pods, watched: Watched) -> None:
    waiting = {**pod("c"), "status": {"phase": "Pending"}}
    assert names_after(pods, watched, Change(waiting)) == {"a", "b", "c"}
    assert pods.pending() == {"c"}


def test_a_pod_that_is_listed_is_not_gone(pods: Pods, watched: Watched) -> None:
    """It was forced to end, a finalizer keeps it, and its label was taken off and put on again."""
    back = (Change(pod("b", **FORCED), deleted=True), Change(pod("b", **FORCED)))
    names_after(pods, watched, *back)
    assert pods.gone({}) == {}


def ended(code: int, at: str, phase: str = "Running") -> dict[str, Any]:
    """Pod b, whose one container has ended then."""
    states = [{"name": "main", "state": {"terminated": {"exitCode": code, "finishedAt": at}}}]
    status = {"phase": phase, "containerStatuses": states}
    return {**pod("b"), "spec": {"containers": [{"name": "main"}]}, "status": status}


def leases(version: str) -> dict[str, Seen]:
    return {"b": Seen({"metadata": {"name": "b", "resourceVersion": version}}, 0.0)}


def test_the_end_of_a_container_says_nothing_of_a_process_that_writes_its_lease_after_it(
    pods: Pods, watched: Watched
) -> None:
    """P4: with restartPolicy OnFailure or Always the next process has the same UID. What the pod's state
    says else does not make the old end a new one."""
    names_after(pods, watched, Change(ended(137, "12:00")))
    for _ in range(2):
        assert pods.gone(leases("7")) == {"uid-b": "its container has ended with exit code 137"}
    assert pods.gone(leases("8")) == {}
    late = ended(137, "12:00")
    late["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    names_after(pods, watched, Change(late))
    assert pods.gone(leases("9")) == {}
    names_after(pods, watched, Change(ended(137, "12:05")))
    assert set(pods.gone(leases("9"))) == {"uid-b"}
    assert set(pods.gone({})) == {"uid-b"}, "a user has deleted its Lease"


def test_the_end_of_a_pod_holds_whatever_its_lease_does(pods: Pods, watched: Watched) -> None:
    names_after(pods, watched, Change(ended(1, "12:00", "Failed")))
    for version in ("7", "8"):
        assert pods.gone(leases(version)) == {"uid-b": "its pod has failed"}
    names_after(pods, watched, Change(pod("b", **FORCED), deleted=True))
    assert pods.gone(leases("9")) == {"uid-b": "its pod was deleted"}


@pytest.mark.parametrize("error", [ApiError("no answer", 0), Forbidden("not yet", 403)])
def test_an_api_server_that_comes_back_has_not_taken_the_pods_out_of_sight(
    pods: Pods, watched: Watched, error: ApiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: its Leases may be listed again first, and one that a user has deleted is no news while pods are in
    sight. One that has just started refuses what it allows a moment later."""
    wait_for(lambda: pods.ready and pods.live(), 10, "the pods are in sight", interval=0.01)
    watched.brings(error)
    wait_for(lambda: pods.live() is None, 10, "they are not", interval=0.01)
    assert not pods.ready
    watched.brings([pod("a"), pod("b")])
    wait_for(lambda: pods.ready, 10, "they are again", interval=0.01)
    assert set(pods.live() or {}) == {"a", "b"}
    monkeypatch.setattr("elasticjob.coordination.pods.BACK_SECONDS", 0.0)
    watched.brings(error)
    wait_for(lambda: pods.live() is None, 10, "they are not", interval=0.01)
    wait_for(lambda: pods.ready, 10, "the coordinator does without them", interval=0.01)


def test_one_that_has_not_seen_the_pods_yet_waits_for_them(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: it has taken over when the API server came back, and the coordinator before has seen them."""
    made = Pods("mnist", Identity("a", "uid-a"), lambda: cast(HttpListApi, watched), lambda: None)
    made.coordinate()
    watched.brings(ApiError("no answer", 0))
    wait_for(lambda: made._all is not None and made._all.last_error, 10, "it has failed", interval=0.01)
    assert not made.ready
    monkeypatch.setattr("elasticjob.coordination.pods.BACK_SECONDS", 0.0)
    wait_for(lambda: made.ready, 10, "it does without them", interval=0.01)
    made.rest()


def test_without_the_right_on_pods_nothing_is_waited_for(watched: Watched) -> None:
    made = Pods("mnist", Identity("a", "uid-a"), lambda: cast(HttpListApi, watched), lambda: None)
    made.coordinate()
    watched.brings(Forbidden("no", 403))
    wait_for(lambda: made.ready, 10, "it is known that they are not in sight", interval=0.01)
    assert made.live() is None
    assert made.staying() is None
    made.rest()
