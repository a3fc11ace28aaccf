"""PodGroups of Kubernetes: which the cluster has, how they are written, and which pods are in them."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, cast

import pytest

from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import OwnedState
from elasticjob_operator.act.owned import Needs, NotOurs, OwnedKind, write_together
from elasticjob_operator.act.owned_kinds import GROUP, KINDS, POD_GROUPS
from elasticjob_operator.act.owned_snapshot import OwnedSnapshot
from elasticjob_operator.act.owned_writer import OwnedWriter
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, Invalid, NotFound, Unavailable
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state.model import GangScheduling, Job, JobSpec, Now, Observed
from elasticjob_operator.plan.state.status import JobStatus
from tests.unit.observed import NoApi

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "x"}], "priorityClassName": "high"}}
ASKED = JobSpec(replicas=4, min_replicas=3, template=TEMPLATE, gang_scheduling=GangScheduling.KUBERNETES)
JOB = Job("ns", "mnist", "uid", 1, ASKED)
PLAIN = replace(JOB, spec=replace(ASKED, gang_scheduling=GangScheduling.NONE))
NEW, OLD = POD_GROUPS["v1beta1"], POD_GROUPS["v1alpha2"]
NEEDS = Needs(frozenset(), (), ())


class Server:
    """An API server that has PodGroups of some versions."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.asked: list[str] = []
        self.group: dict[str, Any] | None = None
        self.served = True
        self.finalized = True
        """Whether a deleted group is gone at once."""

    async def get(self, path: str, *_: Any) -> dict[str, Any]:
        self.asked.append(f"GET {path}")
        if path.rpartition("/")[2] not in self.versions:
            raise NotFound(path, 404, "NotFound", "the server could not find the requested resource")
        return {"resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]}

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(f"POST {path}")
        if not self.served:
            raise NotFound(path, 404, "NotFound", "the server could not find the requested resource")
        if self.group is not None:
            raise AlreadyExists(path, 409, "AlreadyExists", "")
        self.group = copy.deepcopy(body)
        self.group["metadata"]["uid"] = f"group-{len(self.asked)}"
        self.group["spec"].update(disruptionMode="Pod", priority=0)  # the API server's own defaults
        return self.group

    async def patch(self, path: str, changes: list[dict[str, Any]], *_: Any) -> dict[str, Any]:
        self.asked.append(f"PATCH {path} {[change['path'] for change in changes[1:]]}")
        if self.group is None:
            raise NotFound(path, 404, "NotFound", "")
        if changes[0]["value"] != self.group["metadata"]["ownerReferences"][0]["uid"]:
            raise Conflict(path, 422, "Invalid", "the test failed")
        for change in changes[1:]:
            assert change["path"] == "/spec/schedulingPolicy/gang/minCount", "defaults cannot be changed"
            self.group["spec"]["schedulingPolicy"]["gang"]["minCount"] = change["value"]
        return self.group

    async def delete(self, path: str, uid: str) -> dict[str, Any]:
        self.asked.append(f"DELETE {path}")
        assert self.group is not None
        assert uid == self.group["metadata"]["uid"]
        self.group["metadata"]["deletionTimestamp"] = "now"
        if self.finalized:
            self.group = None
        return {}

    @property
    def minimum(self) -> int | None:
        return None if self.group is None else self.group["spec"]["schedulingPolicy"]["gang"]["minCount"]


def writer(server: Server, on: bool = True) -> tuple[OwnedWriter, ClusterCache]:
    """The writer of an operator, and what its watches have brought."""
    cache = ClusterCache(cast(Api, NoApi()), (), lambda _ns, _job: None, lambda: 0.0)
    return OwnedWriter(cast(Api, server), cache, lambda: 0.0, lambda _job: [], on), cache


async def write(made: OwnedWriter, job: Job, owned: OwnedState) -> bool:
    """One pass's write of the PodGroup, if one is due."""
    now = Now(datetime(2026, 1, 1, tzinfo=timezone.utc), 0.0, "nonce")
    due, _ = made.due(job, plan(job, JobStatus(), Observed(), now, {}), owned, [])
    task = due[GROUP]
    if task is not None:
        await task()
    return task is not None


def put_pod(cache: ClusterCache, node: str = "") -> None:
    """A pod of the job that is in its group."""
    owner = {"kind": "ElasticJob", "name": "mnist", "uid": "uid", "controller": True}
    meta = {"namespace": "ns", "name": "mnist-0-0", "uid": "p", "resourceVersion": "1"}
    labels = {"elasticjob.dev/job-name": "mnist"}
    spec = {"schedulingGroup": {"podGroupName": "mnist-elasticjob"}, "nodeName": node}
    cache.pods.put(
        read_pod({"metadata": {**meta, "labels": labels, "ownerReferences": [owner]}, "spec": spec})
    )


@pytest.mark.parametrize(("on", "job"), [(False, PLAIN), (False, JOB), (True, PLAIN)])
async def test_where_it_is_off_or_not_asked_for_nothing_is_asked_of_the_cluster(on: bool, job: Job) -> None:
    server, owned = Server("v1beta1"), OwnedState()
    made, _ = writer(server, on)
    if job is PLAIN:
        assert not await write(made, job, owned)
        assert made.group(job, owned) == ""
    else:
        with pytest.raises(Invalid, match=r"gangScheduling\.kubernetes"):
            await write(made, job, owned)
        assert made.group(job, owned) is None, "its pods wait"
    if not on:
        await made.groups.look()
    assert server.asked == []


async def test_a_cluster_without_pod_groups_is_named() -> None:
    server, owned = Server(), OwnedState()
    made, _ = writer(server)
    with pytest.raises(
        Invalid, match="v1beta1 or v1alpha2; have an administrator switch on the feature gate"
    ):
        await write(made, JOB, owned)
    assert made.group(JOB, owned) is None
    assert server.asked == ["GET /apis/scheduling.k8s.io/v1beta1", "GET /apis/scheduling.k8s.io/v1alpha2"]
    server.versions = ("v1alpha2",)
    assert await write(made, JOB, owned)
    assert made.groups.kind is OLD


async def test_of_two_versions_the_newer_one_is_used() -> None:
    made, _ = writer(Server("v1alpha2", "v1beta1"))
    await made.groups.look()
    assert made.groups.kind is NEW


@pytest.mark.parametrize("version", POD_GROUPS)
async def test_the_group_is_there_before_the_first_pod(version: str) -> None:
    server, owned = Server(version), OwnedState()
    made, _ = writer(server)
    await write(made, JOB, owned)
    assert made.group(JOB, owned) is None
    await write(made, JOB, owned)
    assert server.group is not None
    assert server.group["apiVersion"] == f"scheduling.k8s.io/{version}"
    assert server.group["spec"]["priorityClassName"] == "high"
    assert "schedulingConstraints" not in server.group["spec"]
    assert server.minimum == 3
    assert made.group(JOB, owned) == "mnist-elasticjob"
    assert not await write(made, JOB, owned), "it is written once"


def test_pods_name_it_and_others_do_not() -> None:
    image = HandlerImage("handler:1")
    assert pod_of(JOB, 0, 0, image, group="mnist-elasticjob")["spec"]["schedulingGroup"] == {
        "podGroupName": "mnist-elasticjob"
    }
    assert "schedulingGroup" not in pod_of(JOB, 0, 0, image)["spec"]


async def test_a_new_minimum_changes_the_group() -> None:
    server, owned = Server("v1beta1"), OwnedState()
    made, cache = writer(server)
    await write(made, JOB, owned)
    await write(made, JOB, owned)
    put_pod(cache, "a")
    lower = replace(JOB, spec=replace(ASKED, min_replicas=2))
    assert made.group(lower, owned) is None
    await write(made, lower, owned)
    assert (server.minimum, made.group(lower, owned)) == (2, "mnist-elasticjob")
    assert made.groups.fixed_minimum(owned) is None


@pytest.mark.parametrize(("minimum", "group"), [(4, "mnist-elasticjob"), (2, "")])
async def test_a_group_that_cannot_be_changed_stays_while_a_pod_is_in_it(minimum: int, group: str) -> None:
    """It would hold later pods until more are there than the job needs by now: these are in none."""
    server, owned = Server("v1alpha2"), OwnedState()
    made, cache = writer(server)
    await write(made, JOB, owned)
    await write(made, JOB, owned)
    put_pod(cache, "a")
    changed = replace(JOB, spec=replace(ASKED, min_replicas=minimum))
    assert not await write(made, changed, owned)
    assert (server.minimum, made.group(changed, owned), made.groups.fixed_minimum(owned)) == (3, group, 3)
    # An operator that starts later finds it as it is.
    later = OwnedState()
    assert await write(made, changed, later)
    assert (server.minimum, made.group(changed, later)) == (3, group)
    assert not [line for line in server.asked if line.startswith("DELETE")]
    # Without the pod it is made again.
    cache.pods.remove("ns", "mnist-0-0", uid="p")
    assert made.group(changed, owned) is None
    await write(made, changed, owned)
    assert (server.minimum, made.group(changed, owned)) == (minimum, "mnist-elasticjob")


async def test_the_next_group_waits_until_the_former_one_is_gone() -> None:
    server = Server("v1alpha2")
    await write_together(cast(Api, server), JOB, contents(OLD, JOB))
    server.finalized = False
    lower = replace(JOB, spec=replace(ASKED, min_replicas=2))
    for _ in range(2):
        with pytest.raises(Unavailable, match="the former PodGroup mnist-elasticjob is still being deleted"):
            await write_together(cast(Api, server), lower, contents(OLD, lower))
    assert sum(line.startswith("DELETE") for line in server.asked) == 1
    server.group = None
    await write_together(cast(Api, server), lower, contents(OLD, lower))
    assert server.minimum == 2


@pytest.mark.parametrize("kind", POD_GROUPS.values(), ids=POD_GROUPS)
async def test_a_group_of_somebody_else_is_left_alone(kind: OwnedKind) -> None:
    server = Server()
    await write_together(cast(Api, server), replace(JOB, uid="other"), contents(kind, JOB))
    before = copy.deepcopy(server.group)
    with pytest.raises(NotOurs, match="PodGroup mnist-elasticjob already exists"):
        await write_together(cast(Api, server), JOB, contents(kind, JOB))
    assert server.group == before


@pytest.mark.parametrize("kind", POD_GROUPS.values(), ids=POD_GROUPS)
async def test_what_the_api_server_adds_is_no_change(kind: OwnedKind) -> None:
    server, owned = Server(), OwnedState()
    await write_together(cast(Api, server), JOB, contents(kind, JOB))
    assert server.group is not None
    snapshot = OwnedSnapshot(1.0, (*KINDS, kind))
    snapshot.take(kind, server.group)
    snapshot.compare(JOB, owned, [])
    assert owned.is_written("PodGroup", kind.known(contents(kind, JOB)[kind]))


async def test_a_version_that_is_no_longer_served_is_looked_for_again() -> None:
    server, owned = Server("v1alpha2"), OwnedState()
    made, _ = writer(server)
    await write(made, JOB, owned)

    server.served = False
    with pytest.raises(NotFound):
        await write(made, JOB, owned)
    assert made.groups.kind is None


@pytest.mark.parametrize("suspended", [True, False])
async def test_a_suspended_job_gets_none(suspended: bool) -> None:
    server, owned = Server("v1beta1"), OwnedState()
    made, _ = writer(server)
    job = replace(JOB, spec=replace(ASKED, suspend=suspended))
    assert await write(made, job, owned) != suspended


def contents(kind: OwnedKind, job: Job) -> dict[OwnedKind, Any]:
    return {kind: kind.contents(job, NEEDS)}
