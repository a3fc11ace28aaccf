"""PodGroups: whose the cluster has, how they are written, and which pods are in them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import reduce
from typing import Any, cast

import pytest

from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import JobState, OwnedState
from elasticjob_operator.act.owned import Needs, NotOurs, OwnedKind, write_together
from elasticjob_operator.act.owned_kinds import GROUP, KINDS, POD_GROUPS
from elasticjob_operator.act.owned_snapshot import OwnedSnapshot, list_owned
from elasticjob_operator.act.owned_writer import OwnedWriter
from elasticjob_operator.act.spec_warnings import new_warnings
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, Invalid, NotFound, Unavailable
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.pods.gang import minimum
from elasticjob_operator.plan.state.model import GangScheduling, Job, JobSpec, Now, Observed, Plan
from elasticjob_operator.plan.state.status import JobStatus
from tests.unit.observed import NoApi

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "x"}], "priorityClassName": "high"}}
ASKED = JobSpec(replicas=4, min_replicas=3, template=TEMPLATE, gang_scheduling=GangScheduling.KUBERNETES)
JOB = Job("ns", "mnist", "uid", 1, ASKED)
PLAIN = replace(JOB, spec=replace(ASKED, gang_scheduling=GangScheduling.NONE))
NEW, OLD = POD_GROUPS[GangScheduling.KUBERNETES]
KINDS_OF_GROUPS = {kind.api_version: kind for kinds in POD_GROUPS.values() for kind in kinds}
GANG_OF = {kind: gang for gang, kinds in POD_GROUPS.items() for kind in kinds}
CHANGEABLE = [version for version, kind in KINDS_OF_GROUPS.items() if not kind.fixed]
MINIMA = {
    "scheduling.k8s.io/v1beta1": ("spec", "schedulingPolicy", "gang", "minCount"),
    "scheduling.k8s.io/v1alpha2": ("spec", "schedulingPolicy", "gang", "minCount"),
    "scheduling.x-k8s.io/v1alpha1": ("spec", "minMember"),
    "scheduling.volcano.sh/v1beta1": ("spec", "minMember"),
}
"""Where each says how many pods are placed together."""
IMAGE = HandlerImage("handler:1")
NEEDS = Needs(frozenset(), (), (), least=3)
NEW_JOB = JobStatus()


def asking(version: str, **spec: Any) -> Job:
    """The job, that asks for PodGroups of this version of an API."""
    return replace(JOB, spec=replace(ASKED, gang_scheduling=GANG_OF[KINDS_OF_GROUPS[version]], **spec))


def at(body: Mapping[str, Any], path: Sequence[str]) -> Any:
    return reduce(lambda value, key: value[key], path, body)


class Server:
    """An API server that has PodGroups of some versions, such as ``scheduling.k8s.io/v1beta1``."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.asked: list[str] = []
        self.group: dict[str, Any] | None = None
        self.served = True
        self.finalized = True
        """Whether a deleted group is gone at once."""

    async def get(self, path: str, *_: Any) -> dict[str, Any]:
        self.asked.append(f"GET {path}")
        if path.removeprefix("/apis/") not in self.versions:
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
        self.group["spec"].update(disruptionMode="Pod", queue="default")  # as API servers add defaults
        return self.group

    async def patch(self, path: str, changes: list[dict[str, Any]], *_: Any) -> dict[str, Any]:
        self.asked.append(f"PATCH {path} {[change['path'] for change in changes[1:]]}")
        if self.group is None:
            raise NotFound(path, 404, "NotFound", "")
        if changes[0]["value"] != self.group["metadata"]["ownerReferences"][0]["uid"]:
            raise Conflict(path, 422, "Invalid", "the test failed")
        for change in changes[1:]:
            *above, last = self._minimum
            assert change["path"] == f"/{'/'.join(self._minimum)}", "defaults cannot be changed"
            at(self.group, above)[last] = change["value"]
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
        return None if self.group is None else at(self.group, self._minimum)

    @property
    def _minimum(self) -> tuple[str, ...]:
        assert self.group is not None
        return MINIMA[self.group["apiVersion"]]


def writer(server: Server, on: Collection[str] = tuple(POD_GROUPS)) -> tuple[OwnedWriter, ClusterCache]:
    """The writer of an operator, and what its watches have brought."""
    cache = ClusterCache(cast(Api, NoApi()), (), lambda _ns, _job: None, lambda: 0.0)
    return OwnedWriter(cast(Api, server), cache, lambda: 0.0, lambda _job: [], on), cache


def planned(job: Job, status: JobStatus) -> Plan:
    """What a pass decides, with the minimum of this status."""
    now = Now(datetime(2026, 1, 1, tzinfo=timezone.utc), 0.0, "nonce")
    decided = plan(job, NEW_JOB, Observed(), now, {})
    return replace(decided, status=replace(decided.status, min_replicas=status.min_replicas))


def group_of(made: OwnedWriter, job: Job, owned: OwnedState, status: JobStatus = NEW_JOB) -> str | None:
    """The PodGroup of the next pod."""
    return made.group(job, planned(job, status), owned)


async def write(made: OwnedWriter, job: Job, owned: OwnedState, status: JobStatus = NEW_JOB) -> bool:
    """One pass's write of the PodGroup, if one is due."""
    due, _ = made.due(job, planned(job, status), owned, [])
    task = due[GROUP]
    if task is not None:
        await task()
    return task is not None


class Begun:
    """An operator and a job whose PodGroup, of this version of an API, is there."""

    def __init__(self, version: str, **spec: Any) -> None:
        self.server, self.owned, self.job = Server(version), OwnedState(), asking(version, **spec)
        self.made, self.cache = writer(self.server)

    async def write(self, job: Job | None = None) -> bool:
        """As ``write``."""
        return await write(self.made, job or self.job, self.owned)

    def group(self, job: Job | None = None) -> str | None:
        """As ``group_of``."""
        return group_of(self.made, job or self.job, self.owned)


async def begun(version: str, **spec: Any) -> Begun:
    """The API is found first, then the group is made."""
    found = Begun(version, **spec)
    assert await found.write()
    assert await found.write()
    return found


def put_pod(cache: ClusterCache, job: Job = JOB, node: str = "") -> None:
    """A pod of the job that is in its group."""
    made = pod_of(job, 0, 0, IMAGE, group="mnist-elasticjob")
    made["metadata"].update(uid="p", resourceVersion="1")
    made["spec"]["nodeName"] = node
    cache.pods.put(read_pod(made))


@pytest.mark.parametrize("gang", POD_GROUPS)
async def test_where_it_is_off_or_not_asked_for_nothing_is_asked_of_the_cluster(gang: str) -> None:
    others, job = [one for one in POD_GROUPS if one != gang], asking(POD_GROUPS[gang][0].api_version)
    server, owned = Server(*KINDS_OF_GROUPS), OwnedState()
    made, _ = writer(server, others)
    with pytest.raises(Invalid, match=rf"chart's value gangScheduling\.{gang.lower()}, or"):
        await write(made, job, owned)
    assert group_of(made, job, owned) is None, "its pods wait"

    made, _ = writer(server)
    assert not await write(made, PLAIN, owned)
    assert group_of(made, PLAIN, owned) == ""

    made, _ = writer(server, ())
    await made.groups.look()
    assert made.groups.kinds == KINDS
    assert server.asked == []


@pytest.mark.parametrize("gang", POD_GROUPS)
async def test_of_what_is_switched_on_alone_is_asked_whether_the_cluster_has_it(gang: str) -> None:
    server = Server(*KINDS_OF_GROUPS)
    made, _ = writer(server, [gang])
    await made.groups.look()
    assert made.groups.kinds == (*KINDS, POD_GROUPS[gang][0])
    assert server.asked == [f"GET /apis/{POD_GROUPS[gang][0].api_version}"]


REMEDIES = {
    "Kubernetes": "scheduling.k8s.io/v1beta1 or scheduling.k8s.io/v1alpha2; have an administrator switch on",
    "Coscheduling": "scheduling.x-k8s.io/v1alpha1; have an administrator install the resource definition",
    "Volcano": "scheduling.volcano.sh/v1beta1; have an administrator install Volcano",
}


@pytest.mark.parametrize("gang", POD_GROUPS)
async def test_a_cluster_without_pod_groups_is_named(gang: str) -> None:
    *_, last = POD_GROUPS[gang]
    server, owned, job = Server(), OwnedState(), asking(last.api_version)
    made, _ = writer(server)
    with pytest.raises(Invalid, match=REMEDIES[gang]):
        await write(made, job, owned)
    assert group_of(made, job, owned) is None
    assert server.asked == [f"GET /apis/{kind.api_version}" for kind in POD_GROUPS[gang]]
    server.versions = (last.api_version,)
    assert await write(made, job, owned)
    assert made.groups.kind_of(job) is last


async def test_a_group_of_the_api_without_pod_groups_is_none() -> None:
    """scheduling.x-k8s.io has ElasticQuotas as well."""

    class WithQuotas(Server):
        async def get(self, *_: Any) -> dict[str, Any]:
            return {"resources": [{"name": "elasticquotas"}]}

    made, _ = writer(WithQuotas())
    await made.groups.look()
    assert made.groups.kinds == KINDS


async def test_of_two_versions_the_newer_one_is_used() -> None:
    made, _ = writer(Server(OLD.api_version, NEW.api_version))
    await made.groups.look()
    assert made.groups.kind_of(JOB) is NEW


@pytest.mark.parametrize("version", KINDS_OF_GROUPS)
async def test_the_group_is_there_before_the_first_pod(version: str) -> None:
    server, owned, job = Server(version), OwnedState(), asking(version)
    made, _ = writer(server)
    await write(made, job, owned)
    assert group_of(made, job, owned) is None
    await write(made, job, owned)
    assert server.group is not None
    assert server.group["apiVersion"] == version
    # Coscheduling goes by the priority of the pods.
    has_priority = job.spec.gang_scheduling != GangScheduling.COSCHEDULING
    assert server.group["spec"].get("priorityClassName") == ("high" if has_priority else None)
    assert "schedulingConstraints" not in server.group["spec"]
    assert server.minimum == 3
    assert group_of(made, job, owned) == "mnist-elasticjob"
    assert not await write(made, job, owned), "it is written once"


def test_pods_name_it_and_others_do_not() -> None:
    made = {
        gang: pod_of(replace(JOB, spec=replace(ASKED, gang_scheduling=gang)), 0, 0, IMAGE, group="mine")
        for gang in POD_GROUPS
    }
    native, plugin, volcano = made["Kubernetes"], made["Coscheduling"], made["Volcano"]
    assert native["spec"]["schedulingGroup"] == {"podGroupName": "mine"}
    assert plugin["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "mine"
    assert volcano["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "mine"
    assert volcano["spec"]["schedulerName"] == "volcano"
    assert {read_pod(pod).pod.group for pod in made.values()} == {"mine"}
    texts = [repr(pod) for pod in made.values()]
    assert [[place in text for place in PLACES] for text in texts] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    plain = pod_of(PLAIN, 0, 0, IMAGE)
    assert not any(place in repr(plain) for place in PLACES)
    assert "schedulerName" not in plain["spec"]
    assert read_pod(plain).pod.group == ""


PLACES = ("schedulingGroup", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name")


@pytest.mark.parametrize("gang", POD_GROUPS)
def test_a_scheduler_that_the_template_names_stays(gang: str) -> None:
    template = {"spec": {**TEMPLATE["spec"], "schedulerName": "mine"}}
    job = replace(JOB, spec=replace(ASKED, template=template, gang_scheduling=gang))
    assert pod_of(job, 0, 0, IMAGE, group="mnist-elasticjob")["spec"]["schedulerName"] == "mine"


@pytest.mark.parametrize(
    ("gang", "named", "usual"),
    [
        ("Kubernetes", "", ""),
        ("Kubernetes", "default-scheduler", ""),
        ("Kubernetes", "volcano", "default-scheduler"),
        ("Coscheduling", "", ""),
        ("Coscheduling", "scheduler-plugins-scheduler", ""),
        ("Volcano", "", ""),
        ("Volcano", "volcano", ""),
        ("Volcano", "default-scheduler", "volcano"),
        ("None", "volcano", ""),
    ],
)
def test_of_a_scheduler_that_may_not_know_the_group_it_is_said(gang: str, named: str, usual: str) -> None:
    template = {"spec": {**TEMPLATE["spec"], **({"schedulerName": named} if named else {})}}
    job = replace(JOB, spec=replace(ASKED, template=template, gang_scheduling=gang))
    events = [event for event in new_warnings(job, JobState()) if event.reason == "GroupMayBeIgnored"]
    assert [(repr(usual) in event.message, repr(named) in event.message) for event in events] == (
        [(True, True)] if usual else []
    )


@pytest.mark.parametrize("version", CHANGEABLE)
async def test_a_new_minimum_changes_the_group(version: str) -> None:
    one, lower = await begun(version), asking(version, min_replicas=2)
    put_pod(one.cache, one.job, "a")
    assert one.group(lower) is None
    await one.write(lower)
    assert (one.server.minimum, one.group(lower)) == (2, "mnist-elasticjob")
    assert one.made.groups.fixed_minimum(lower, one.owned) is None
    assert not [line for line in one.server.asked if line.startswith("DELETE")]


async def test_a_job_has_a_group_of_each_api_that_it_has_asked_for() -> None:
    """What is there of one is not taken for that of another."""
    owned = OwnedState()
    for version in (NEW.api_version, "scheduling.volcano.sh/v1beta1"):
        server, job = Server(*KINDS_OF_GROUPS), asking(version)
        made, _ = writer(server)
        await write(made, job, owned)
        assert group_of(made, job, owned) is None
        await write(made, job, owned)
        assert server.group is not None
        assert server.group["apiVersion"] == version


@pytest.mark.parametrize(("minimum", "group"), [(4, "mnist-elasticjob"), (2, "")])
async def test_a_group_that_cannot_be_changed_stays_while_a_pod_is_in_it(minimum: int, group: str) -> None:
    """It would hold later pods until more are there than the job needs by now: these are in none."""
    server, owned = Server(OLD.api_version), OwnedState()
    made, cache = writer(server)
    await write(made, JOB, owned)
    await write(made, JOB, owned)
    put_pod(cache, node="a")
    changed = replace(JOB, spec=replace(ASKED, min_replicas=minimum))
    assert not await write(made, changed, owned)
    assert (server.minimum, group_of(made, changed, owned), made.groups.fixed_minimum(JOB, owned)) == (
        3,
        group,
        3,
    )
    # An operator that starts later finds it as it is.
    later = OwnedState()
    assert await write(made, changed, later)
    assert (server.minimum, group_of(made, changed, later)) == (3, group)
    assert not [line for line in server.asked if line.startswith("DELETE")]
    # Without the pod it is made again.
    cache.pods.remove("ns", "mnist-0-0", uid="p")
    assert group_of(made, changed, owned) is None
    await write(made, changed, owned)
    assert (server.minimum, group_of(made, changed, owned)) == (minimum, "mnist-elasticjob")


async def test_the_next_group_waits_until_the_former_one_is_gone() -> None:
    server = Server(OLD.api_version)
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


@pytest.mark.parametrize("kind", KINDS_OF_GROUPS.values(), ids=KINDS_OF_GROUPS)
async def test_a_group_of_somebody_else_is_left_alone(kind: OwnedKind) -> None:
    server = Server()
    await write_together(cast(Api, server), replace(JOB, uid="other"), contents(kind, JOB))
    before = copy.deepcopy(server.group)
    with pytest.raises(NotOurs, match="PodGroup mnist-elasticjob already exists"):
        await write_together(cast(Api, server), JOB, contents(kind, JOB))
    assert server.group == before


@pytest.mark.parametrize("kind", KINDS_OF_GROUPS.values(), ids=KINDS_OF_GROUPS)
async def test_what_the_api_server_adds_is_no_change(kind: OwnedKind) -> None:
    server, owned = Server(), OwnedState()
    await write_together(cast(Api, server), JOB, contents(kind, JOB))
    assert server.group is not None
    snapshot = OwnedSnapshot(1.0, (*KINDS, *KINDS_OF_GROUPS.values()))
    snapshot.take(kind, server.group)
    snapshot.compare(JOB, owned, [])
    assert owned.is_written(kind, kind.known(contents(kind, JOB)[kind]))
    assert [one for one in KINDS_OF_GROUPS.values() if owned.written[one] is not None] == [kind]


@pytest.mark.parametrize("version", KINDS_OF_GROUPS)
async def test_a_version_that_is_no_longer_served_is_looked_for_again(version: str) -> None:
    server, owned, job = Server(*KINDS_OF_GROUPS), OwnedState(), asking(version)
    server.versions = tuple(one for one in KINDS_OF_GROUPS if one in (version, CHANGEABLE[-1]))
    made, _ = writer(server)
    await write(made, job, owned)
    others = set(made.groups.kinds) - {made.groups.kind_of(job)}

    server.served = False
    with pytest.raises(NotFound):
        await write(made, job, owned)
    assert made.groups.kind_of(job) is None
    assert set(made.groups.kinds) == others


@pytest.mark.parametrize("suspended", [True, False])
async def test_a_suspended_job_gets_none(suspended: bool) -> None:
    server, owned = Server(NEW.api_version), OwnedState()
    made, _ = writer(server)
    job = replace(JOB, spec=replace(ASKED, suspend=suspended))
    assert await write(made, job, owned) != suspended


@pytest.mark.parametrize("version", KINDS_OF_GROUPS)
async def test_a_job_that_grows_needs_as_many_as_before_until_all_can_train(version: str) -> None:
    """A job of a fixed size trains on meanwhile, and its lost pods are to find nodes."""
    server, owned, job = Server(version), OwnedState(), asking(version, replicas=8, min_replicas=None)
    made, _ = writer(server)
    trains = JobStatus(min_replicas=4)
    for _ in range(2):
        await write(made, job, owned, trains)
    assert server.minimum == 4
    assert group_of(made, job, owned, trains) == "mnist-elasticjob"
    assert minimum(job, JobStatus(min_replicas=8)) == 8, "all trained once"
    assert minimum(job, NEW_JOB) == 8


@pytest.mark.parametrize("version", KINDS_OF_GROUPS)
async def test_beside_a_pod_in_no_group_further_ones_are_in_none(version: str) -> None:
    """With them the group would never gather enough."""
    one = await begun(version)
    put_pod(one.cache, node="a")
    assert one.group() == "mnist-elasticjob"
    outside = pod_of(PLAIN, 1, 0, IMAGE)
    outside["metadata"].update(uid="q", resourceVersion="2")
    one.cache.pods.put(read_pod(outside))
    assert one.group() == ""


@pytest.mark.parametrize("version", KINDS_OF_GROUPS)
async def test_a_job_that_is_resumed_looks_whether_its_group_is_still_there(version: str) -> None:
    one = await begun(version)
    await one.write(replace(one.job, spec=replace(one.job.spec, suspend=True)))
    one.server.group = None  # a user has deleted it
    assert one.group() is None
    assert await one.write()
    assert (one.server.minimum, one.group()) == (3, "mnist-elasticjob")


@pytest.mark.parametrize("kind", KINDS_OF_GROUPS.values(), ids=KINDS_OF_GROUPS)
async def test_a_group_that_is_being_deleted_counts_as_gone(kind: OwnedKind) -> None:
    server, owned = Server(), OwnedState()
    await write_together(cast(Api, server), JOB, contents(kind, JOB))
    assert server.group is not None
    server.group["metadata"]["deletionTimestamp"] = "now"
    snapshot = OwnedSnapshot(1.0, (*KINDS, *KINDS_OF_GROUPS.values()))
    snapshot.take(kind, server.group)
    snapshot.compare(JOB, owned, [])
    assert owned.written[kind] is None


async def test_what_jobs_own_is_compared_although_pod_groups_are_served_no_more() -> None:
    """While a control plane is upgraded, one API server has them and another has not."""
    asked: list[str] = []

    class Upgraded(Server):
        async def get(self, path: str, *_: Any) -> dict[str, Any]:
            asked.append(path)
            if "podgroups" in path:
                raise NotFound(path, 404, "NotFound", "the server could not find the requested resource")
            return {"metadata": {"resourceVersion": "1"}, "items": []}

    snapshot = await list_owned(cast(Api, Upgraded()), "", lambda: 1.0, (NEW, *KINDS))
    owned = OwnedState()
    snapshot.compare(JOB, owned, [])
    assert owned.written[NEW] is None
    assert len(asked) == 1 + len(KINDS)


def contents(kind: OwnedKind, job: Job) -> dict[OwnedKind, Any]:
    return {kind: kind.contents(job, replace(NEEDS, least=job.spec.least))}
