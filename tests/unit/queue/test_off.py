"""Where Kueue is not asked for, nothing is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import Unavailable
from elasticjob_operator.settings import Settings
from tests.unit.observed import NoApi
from tests.unit.queue.words import JOB


def watched(queues: bool) -> list[str]:
    cache = ClusterCache(cast(Api, NoApi()), ("a", "b"), lambda _ns, _job: None, lambda: 0.0, (), queues)
    return [informer.path for informer in cache.informers() if "kueue" in informer.path]


def test_workloads_are_watched_in_the_namespaces_that_are_served_if_they_are_to_be() -> None:
    assert watched(queues=True) == [
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads",
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/b/workloads",
    ]
    assert watched(queues=False) == []
    assert not Settings().kueue


def test_where_they_are_not_watched_they_are_not_taken_for_absent() -> None:
    cache = ClusterCache(cast(Api, NoApi()), (), lambda _ns, _job: None, lambda: 0.0)
    assert cache.workloads_of(JOB) is None


def test_a_cluster_without_kueue_is_not_waited_for() -> None:
    """The list of Workloads is answered with 404 there: everything else must go on."""
    cache = ClusterCache(cast(Api, NoApi()), (), lambda _ns, _job: None, lambda: 0.0, (), queues=True)
    assert cache.workloads_of(JOB) == ()
    for informer in cache.informers():
        if "kueue" in informer.path:
            informer.unavailable = True
    assert cache.workloads_of(JOB) is None


class Broken:
    """Kueue's conversion webhook is down."""

    async def get(self, *_: Any, **__: Any) -> Any:
        raise Unavailable("GET workloads", 500, "InternalError", "conversion webhook failed")


async def test_an_outage_of_kueue_holds_up_no_other_job() -> None:
    cache = ClusterCache(cast(Api, Broken()), (), lambda _ns, _job: None, lambda: 0.0, (), queues=True)
    (workloads,) = [informer for informer in cache.informers() if "kueue" in informer.path]
    task = asyncio.create_task(workloads.run())
    try:
        await asyncio.wait_for(workloads.synced.wait(), 60)
        assert cache.workloads_of(JOB) is None
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
