"""When passes come, what they remember, and what the informers bring and miss."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

import pytest

from devcluster.cluster import Cluster
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.errors import NotFound
from elasticjob_operator.plan.state.model import Event
from tests.integration.shell.scene import Scene, eventually, most_tries, until
from tests.integration.shell.stub import create_missing

pytestmark = pytest.mark.cluster


async def test_events_are_counted_up(scene: Scene) -> None:
    await scene.make_job()
    scene.planner.events = (Event("RoundBroken", "pod x was lost", warning=True),)
    async with scene.operator() as operator:
        for _ in range(3):
            async with operator.one_more_pass():
                await scene.poke()

        async def counted() -> bool:
            page = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/events")
            ours = [e for e in page["items"] if e["reason"] == "RoundBroken"]
            assert len(ours) <= 1
            return bool(ours) and ours[0]["count"] >= 3 and ours[0]["type"] == "Warning"

        await eventually(counted, "one Event with a count")


async def test_the_waiting_sentence_is_written_rarely_and_a_phase_at_once(scene: Scene) -> None:
    async with scene.serving() as operator:
        for sentence in ("one", "two", "three"):
            async with operator.one_more_pass():
                scene.planner.waiting = sentence
                operator.enqueue()
        record = await scene.record()
        assert record is not None
        assert record.waiting_message == "", "as it was made a moment ago"
        scene.planner.number = 1
        operator.enqueue()
        await scene.round_is(1, "Broken")
        record = await scene.record()
        assert record is not None
        assert record.waiting_message == "three"


async def test_timers_are_kept_and_start_again_after_a_gap(scene: Scene) -> None:
    async with scene.serving() as operator:
        await until(lambda: operator.controller.cache.trusted(scene.namespace), "the watches are there")
        for _ in range(2):
            async with operator.one_more_pass():
                operator.enqueue()
        assert scene.planner.timers[-1], "timers come back"
        for informer in operator.controller.cache.informers():
            informer.stalled()
        count = len(scene.planner.timers)
        operator.enqueue()
        await until(lambda: len(scene.planner.timers) > count, "one more pass")
        assert scene.planner.timers[-1] == {}


async def test_errors_back_off_whatever_happens_meanwhile(scene: Scene) -> None:
    async with scene.serving() as operator:
        await until(lambda: operator.controller.cache.trusted(scene.namespace), "the watches are there")
        scene.wire.fail_at = "PATCH elasticjobs"
        scene.planner.number = 1
        began = time.monotonic()

        def tried() -> bool:
            operator.enqueue()
            return scene.wire.failed >= 4

        await until(tried, "it is tried again")
        # After 0, 0.2, 0.6, 1.4 s, and then at most once a second as long as there is news.
        took = time.monotonic() - began
        assert scene.wire.failed <= most_tries(took, 0.2, longest=1.0)
        assert took >= 0.75 * 1.4
        assert scene.planner.timers[-1], "what waits for its time goes on waiting"
        scene.wire.fail_at = ""
        await scene.round_is(1, "Broken")


async def test_the_list_finds_what_the_watch_missed(scene: Scene) -> None:
    async with scene.serving() as operator:
        await operator.pause_feed()
        await scene.admin.delete(job_path(scene.namespace, "mnist"))
        await operator.controller.source.relist(scene.namespace)
        assert len(operator.controller.registry) == 0
        made = await scene.make_job()
        await operator.controller.source.relist(scene.namespace)

        async def served() -> bool:
            record = await scene.record()
            return record is not None and record.job_uid == made["metadata"]["uid"]

        await eventually(served, "the job that nobody told of is served")
        policy = f"/apis/networking.k8s.io/v1/namespaces/{scene.namespace}/networkpolicies/mnist-elasticjob"

        async def there() -> bool:
            try:
                return bool(await scene.admin.get(policy))
            except NotFound:
                return False

        await eventually(there, "its policy is there")
        await scene.admin.delete(policy)
        await operator.controller.source.relist(scene.namespace)
        await eventually(there, "the policy that somebody deleted is there again")


async def test_whoever_missed_a_jobs_end_learns_it_when_its_lease_goes(scene: Scene) -> None:
    """Made for a job that is gone, the garbage collector takes it, a hundred times a second."""
    async with scene.serving() as operator:
        await operator.pause_feed()
        await scene.admin.delete(f"{scene.leases}/mnist-round")
        await until(lambda: scene.wire.writes.count("POST leases") == 2, "it is made again for a job")
        await scene.admin.delete(job_path(scene.namespace, "mnist"))
        with contextlib.suppress(NotFound):  # the garbage collector may have been first
            await scene.admin.delete(f"{scene.leases}/mnist-round")
        await until(lambda: not len(operator.controller.registry), "the operator has forgotten the job")
        assert scene.wire.writes.count("POST leases") == 2


async def test_a_list_does_not_bring_back_a_job_that_went_while_it_was_under_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene.serving() as operator:
        get = operator.client.get

        async def slow(path: str, params: Mapping[str, str] | None = None) -> Json:
            page = await get(path, params)
            if path.endswith("/elasticjobs"):
                assert page["items"]
                await scene.admin.delete(job_path(scene.namespace, "mnist"))
                await until(lambda: not len(operator.controller.registry), "the watch has told of it")
            return page

        monkeypatch.setattr(operator.client, "get", slow)
        await operator.controller.source.relist(scene.namespace)
        assert len(operator.controller.registry) == 0


@pytest.mark.devcluster
async def test_the_informer_survives_the_api_server(scene: Scene, devcluster: Cluster) -> None:
    await scene.make_job()
    scene.planner.actions = create_missing
    async with scene.operator() as operator:
        cache = operator.controller.cache
        await scene.pods_are("mnist-0-0", "mnist-1-0")
        scene.planner.actions = lambda _job, _observed: ()
        second = await asyncio.to_thread(devcluster.second_apiserver)
        apiserver = devcluster.component("apiserver")
        await asyncio.to_thread(apiserver.stop)
        command = [
            "--kubeconfig",
            str(second.kubeconfig),
            "delete",
            "pod",
            "mnist-0-0",
            "-n",
            scene.namespace,
        ]
        await asyncio.to_thread(devcluster.kubectl, *command, "--force", "--grace-period=0")
        assert not cache.trusted(scene.namespace)
        await asyncio.to_thread(apiserver.start)
        await asyncio.to_thread(second.stop)
        await until(lambda: cache.pods.get(scene.namespace, "mnist-0-0") is None, "the deletion is known")
        await until(lambda: cache.trusted(scene.namespace), "the watches are back")
        await scene.announce("mnist-1-0", "efgh")
        await until(lambda: "mnist-1-0" in scene.planner.seen[-1].leases, "events arrive again")
        scene.planner.number = 4
        await scene.poke()
        await scene.round_is(4, "Broken")


async def test_what_is_out_of_date_before_it_is_published_is_left_out_once(scene: Scene) -> None:
    """News during the write of a status lets the next pass publish; and that pass does, whatever the news."""
    status, lease = "PATCH elasticjobs", "PATCH leases/mnist-round"
    async with scene.serving() as operator:
        await until(lambda: not operator.controller.queue.working, "the first pass is over")
        before = len(scene.wire.writes)

        def written() -> list[str]:
            return [name for name in scene.wire.writes[before:] if name.startswith((status, lease))]

        held = asyncio.Event()
        for number in (1, 2, 3):
            scene.planner.number = number
            before_this, held = held, asyncio.Event()
            scene.wire.held[status] = held
            operator.enqueue()
            before_this.set()
            what = f"the status of round {number} is being written"
            await until(lambda n=number: sum(w.startswith(status) for w in written()) == n, what)  # type: ignore[misc]
        scene.wire.held.clear()
        held.set()
        await scene.round_is(3, "Broken")
        assert [name.partition("/")[0] for name in written()] == [
            "PATCH elasticjobs",
            "PATCH elasticjobs",
            "PATCH leases",
            "PATCH elasticjobs",
            "PATCH leases",
        ]
