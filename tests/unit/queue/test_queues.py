"""What the planner gets to see of a queued job, and what its queue's flavors are read for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.job_state import JobState
from elasticjob_operator.act.queues import Queues
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import NotFound
from elasticjob_operator.observe.packed_template import MAX_TEMPLATE_BYTES
from elasticjob_operator.plan.queue.workloads import Workload
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.state.status import JobStatus
from tests.unit.queue.words import JOB, base, evicted, extra

FLAVORS = {
    "f": {"nodeLabels": {"gpu": "h100"}},
    "g": {"nodeLabels": {"gpu": "a100"}, "tolerations": [{"key": "a100"}]},
    "huge": {"nodeLabels": {}, "tolerations": [{"key": "k" * MAX_TEMPLATE_BYTES}]},
}


class Cluster:
    """Its ResourceFlavors, and the job's Workloads as they are seen."""

    def __init__(self, *workloads: Workload) -> None:
        self.flavors: dict[str, Any] = dict(FLAVORS)
        self.seen: tuple[Workload, ...] = workloads
        self.asked: list[str] = []
        self.made: list[dict[str, Any]] = []

    async def get(self, path: str, *_: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if "/workloadpriorityclasses/" in path:
            return {"metadata": {"name": name}, "value": 100}
        self.asked.append(name)
        if name not in self.flavors:
            raise NotFound(f"GET {path}", 404, "NotFound", f'resourceflavors "{name}" not found')
        return {"metadata": {"name": name}, "spec": self.flavors[name]}

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.made.append(body)
        return body


class Side:
    """A queued job's side of an operator, pass by pass."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.state = cluster, JobState()
        cache = SimpleNamespace(
            workloads_of=lambda _job: cluster.seen,
            unended_pods=lambda *_: set(),
            pods_by_name=lambda _job: {},
            retry=lambda _job: None,
            saw_workload=lambda _raw: None,
        )
        self.queues = Queues(
            cast(Api, cluster),
            cast(ClusterCache, cache),
            lambda: 0.0,
            lambda work, _name: asyncio.ensure_future(work),
            cast(Recorder, SimpleNamespace(send=lambda *_: None)),
            on=True,
        )

    def sees(self) -> Job:
        """The job as the planner sees it now."""
        return self.queues.limited(JOB, JobStatus(), self.state)

    async def writes(self) -> None:
        """What follows the pass."""
        await self.queues.write(JOB, cast(Any, SimpleNamespace(status=JobStatus(), actions=())), self.state)


def selector(job: Job) -> Any:
    assert job.spec.template is not None
    return job.spec.template["spec"].get("nodeSelector")


async def test_no_pod_and_no_extra_is_made_before_the_flavors_are_known() -> None:
    side = Side(Cluster(base()))
    seen = side.sees()
    assert seen.grant is not None
    assert (seen.grant.pods, seen.grant.placed) == (4, False)
    await side.writes()
    assert (side.cluster.asked, side.cluster.made) == (["f"], [])
    seen = side.sees()
    assert seen.grant is not None
    assert seen.grant.placed
    assert selector(seen) == {"gpu": "h100"}
    await side.writes()
    assert [one["spec"]["podSets"][0]["count"] for one in side.cluster.made] == [1, 1, 2]
    for one in side.cluster.made:
        assert one["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}


async def test_what_names_its_job_has_it_as_its_owner() -> None:
    """Kueue ends a Workload at once that has the label of a job and no owner."""
    side = Side(Cluster())
    await side.writes()
    side.cluster.seen = (base(),)
    await side.writes()
    await side.writes()
    assert len(side.cluster.made) == 4, "the base and three extras"
    for one in side.cluster.made:
        assert one["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == JOB.uid
        assert [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [JOB.uid]


async def test_a_template_that_gets_too_large_by_its_flavor_makes_no_pod_and_says_so() -> None:
    side = Side(Cluster(base(flavors=("huge",))))
    await side.writes()
    seen = side.sees()
    assert seen.grant is not None
    assert (seen.grant.pods, seen.grant.placed) == (4, False), "its quota is kept: another spec may fit"
    assert seen.grant.sentence.startswith("with what queue a adds for its nodes, the pod template has 131,")
    assert "at most 131,072 are accepted" in seen.grant.sentence
    assert selector(seen) is None


@pytest.mark.parametrize("seen_between", [True, False], ids=["seen", "not seen"])
async def test_admitted_again_with_another_flavor_pods_get_that_ones_nodes(seen_between: bool) -> None:
    """Another operator may have seen the eviction."""
    side = Side(Cluster(base(), extra(0, 1), extra(1, 1), extra(2, 2)))
    await side.writes()
    assert selector(side.sees()) == {"gpu": "h100"}
    if seen_between:
        side.cluster.seen = (evicted(base()),)
        assert side.sees().spec.suspend
    side.cluster.seen = (base(flavors=("g",)),)
    seen = side.sees()
    assert seen.grant is not None
    assert not seen.grant.placed, "not with what is known of the former flavor"
    await side.writes()
    assert side.cluster.asked == ["f", "g"]
    assert side.cluster.made == [], "extras would ask for the former nodes"
    seen = side.sees()
    assert seen.grant is not None
    assert seen.grant.placed
    assert selector(seen) == {"gpu": "a100"}
    assert seen.spec.template is not None
    assert seen.spec.template["spec"]["tolerations"] == [{"key": "a100"}]


async def test_a_flavor_that_an_admin_changes_holds_from_the_next_admission() -> None:
    """All pods of one admission are for the same nodes."""
    side = Side(Cluster(base()))
    await side.writes()
    side.cluster.flavors["f"] = {"nodeLabels": {"gpu": "h200"}}
    await side.writes()
    assert selector(side.sees()) == {"gpu": "h100"}
    side.cluster.seen = (evicted(base()),)
    side.sees()
    side.cluster.seen = (base(),)
    assert side.sees().spec.template == JOB.spec.template
    await side.writes()
    assert selector(side.sees()) == {"gpu": "h200"}


async def test_a_flavor_that_is_gone_makes_no_pod() -> None:
    side = Side(Cluster(base(flavors=("none",))))
    await side.writes()
    seen = side.sees()
    assert seen.grant is not None
    assert not seen.grant.placed
    (failing,) = side.state.writes.backoff.failing_writes()
    assert failing.name == "the ResourceFlavors that the queue has chosen"
