"""The shell around the planner, against a real API server, with a planner of a few lines in its place.

What is tested is what the shell promises whatever the planner decides: the order of writes, resumption
after a crash between any two of them, conflicts, that the round Lease never goes back, who may do what.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from elasticjob.contract.names import ROUND_ANNOTATION
from elasticjob.contract.round_record import RoundRecord
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.observe.client import MERGE_PATCH
from elasticjob_operator.observe.errors import NotFound
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.state.status import JobStatus, RoundStatus
from tests.integration.shell.scene import DEADLINE, Scene, eventually, until
from tests.integration.shell.stub import create_missing

pytestmark = pytest.mark.cluster


async def test_writes_come_in_the_order_of_the_protocol(scene: Scene) -> None:
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    scene.planner.actions = create_missing
    scene.planner.number = 1
    await scene.make_job()
    async with scene.operator() as operator:
        await scene.pods_are("mnist-0-0", "mnist-1-0")
        await asyncio.sleep(0.3)
        writes = list(scene.wire.writes)
        assert writes[0] == "PATCH elasticjobs/mnist/status"
        owned = ("serviceaccounts", "roles", "rolebindings", "networkpolicies")
        assert set(writes[1:6]) == {*(f"POST {kind}" for kind in owned), "POST leases"}
        assert writes[6:] == ["POST pods", "POST pods"], "each pod was made once"
        # A pass without news writes nothing.
        async with operator.one_more_pass():
            await scene.poke()
        await asyncio.sleep(0.1)
        assert scene.wire.writes == writes
    assert status_json.parse((await scene.job())["status"]).current_round.number == 1


@pytest.mark.parametrize("kill_at", ["PATCH elasticjobs", "POST leases", "POST roles", "POST pods"])
async def test_an_operator_that_dies_between_two_writes_resumes(scene: Scene, kill_at: str) -> None:
    scene.planner.number = 3
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    scene.planner.actions = create_missing
    await scene.make_job()
    scene.wire.kill_at = kill_at
    async with scene.operator():
        await asyncio.wait_for(scene.wire.killed.wait(), DEADLINE)
    if kill_at == "POST leases":
        status = status_json.parse((await scene.job())["status"])
        assert status.current_round.number == 3, "the status came first"
        assert await scene.record() is None
    scene.wire.kill_at = ""
    scene.planner.number = 0  # all that the next operator knows is in the API server
    if kill_at == "PATCH elasticjobs":
        scene.planner.number = 3
    async with scene.operator():
        await scene.round_is(3, "Broken")
        await scene.pods_are("mnist-0-0", "mnist-1-0")


async def test_a_conflict_is_read_again_and_planned_again(scene: Scene) -> None:
    async with scene.serving() as operator:
        await operator.pause_feed()
        await scene.poke()  # which the operator does not hear of
        scene.planner.number = 1
        operator.enqueue()
        await scene.round_is(1, "Broken")
    job = await scene.job()
    assert "poked" in job["metadata"]["annotations"]
    assert status_json.parse(job["status"]).current_round.number == 1


async def test_the_round_lease_never_goes_back(scene: Scene) -> None:
    job = await scene.make_job()
    numbers: list[int] = []
    async with scene.operator() as operator:
        await scene.round_is(0, "Broken")
        await operator.pause_feed()
        ahead = RoundRecord(job_uid=job["metadata"]["uid"], number=9, phase="Broken")
        change = {"metadata": {"annotations": {ROUND_ANNOTATION: ahead.dump()}}}
        await scene.admin.patch(f"{scene.leases}/mnist-round", change, MERGE_PATCH)
        deadline = time.monotonic() + DEADLINE
        while not numbers or numbers[-1] != 10:
            record = await scene.record()
            assert record is not None
            numbers.append(record.number)
            assert time.monotonic() < deadline, numbers
            await asyncio.sleep(0.005)
    assert numbers == sorted(numbers), "it was never below what it had been"
    assert set(numbers) <= {9, 10}
    assert any(o.record is not None and o.record.number == 9 for o in scene.planner.seen)


async def test_a_lease_that_stays_ahead_is_read_again_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a finished job, set forward by hand: no pass numbers above it."""
    caplog.set_level("INFO")
    scene.planner.follows = False
    job = await scene.make_job()
    async with scene.operator() as operator:
        await scene.round_is(0, "Broken")
        ahead = RoundRecord(job_uid=job["metadata"]["uid"], number=9, phase="Broken")
        change = {"metadata": {"annotations": {ROUND_ANNOTATION: ahead.dump()}}}
        await scene.admin.patch(f"{scene.leases}/mnist-round", change, MERGE_PATCH)
        deadline = time.monotonic() + DEADLINE
        for _ in range(5):
            passes = len(scene.planner.seen)
            operator.enqueue()
            while len(scene.planner.seen) == passes or "ahead of the status" not in caplog.text:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
        record = await scene.record()
        assert record is not None
        assert record.number == 9
    assert caplog.text.count("reading again") == 1


async def test_a_stale_status_is_noticed_by_the_lease(scene: Scene) -> None:
    """Status and Lease of another operator arrive over two watches, the Lease first."""
    async with scene.serving() as operator:
        await operator.pause_feed()
        job = await scene.job()
        # Before the writes: the operator may plan the moment that it sees the Lease.
        passes = len(scene.planner.seen)
        scene.planner.message = "by another operator"
        status = JobStatus(current_round=RoundStatus(number=5, phase="Broken", message="by another operator"))
        await scene.admin.patch(
            job_path(scene.namespace, "mnist") + "/status", {"status": status_json.dump(status)}, MERGE_PATCH
        )
        record = RoundRecord(
            job_uid=job["metadata"]["uid"], number=5, phase="Broken", message="by another operator"
        )
        change = {"metadata": {"annotations": {ROUND_ANNOTATION: record.dump()}}}
        await scene.admin.patch(f"{scene.leases}/mnist-round", change, MERGE_PATCH)
        await until(lambda: len(scene.planner.seen) >= passes + 2, "planned again on what was read")
        await asyncio.sleep(0.2)
        assert await scene.record() == record


async def test_pods_and_leases_are_listed_anew_after_a_status_of_somebody_else(scene: Scene) -> None:
    """A predecessor's last words must not be judged by Leases that are older than they."""
    async with scene.serving() as operator:
        cache = operator.controller.cache
        listed: list[str] = []
        read_again = cache.read_again

        async def counted(job: Job) -> None:
            listed.append(job.name)
            await read_again(job)

        cache.read_again = counted  # type: ignore[method-assign]
        scene.planner.message = "our own words"
        await scene.poke()
        await until(lambda: scene.planner.message == operator.round().message, "")
        assert not listed, "what we have written ourselves tells nothing new"
        await scene.announce("mnist-0-0", "abcdefgh")
        status = JobStatus(
            current_round=RoundStatus(number=3, phase="Broken", message="a predecessor's words")
        )
        await scene.admin.patch(
            job_path(scene.namespace, "mnist") + "/status", {"status": status_json.dump(status)}, MERGE_PATCH
        )
        await until(lambda: listed == ["mnist"], "pods and Leases are listed anew, once")
        await until(lambda: "mnist-0-0" in scene.planner.seen[-1].leases, "the Lease is seen")


# shows: one API server of several fails silently, with the connections of the operator
async def test_leases_are_listed_before_anybody_is_given_up(scene: Scene) -> None:
    """A proxy may answer on for an API server that is dead: a watch by it brings nothing, and looks well."""
    async with scene.serving() as operator:
        for informer in operator.controller.cache.informers():
            informer._take = lambda _batch: None  # type: ignore[assignment, method-assign]
        await scene.announce("mnist-0-0", "abcdefgh")
        awaited = ["mnist-0-0"]
        scene.planner.judged_unheard = lambda seen: tuple(pod for pod in awaited if pod not in seen.leases)
        scene.planner.message = "nobody"
        passes, before = operator.controller.passes, len(scene.planner.seen)
        await scene.poke()
        await until(lambda: operator.controller.passes > passes, "another pass")
        await scene.message_is("nobody")
        assert "mnist-0-0" not in scene.planner.seen[before].leases, "first by what the watch has brought"
        assert "mnist-0-0" in scene.planner.seen[-1].leases
        awaited.append("mnist-1-0")
        await scene.poke()
        await scene.message_is("given up: mnist-1-0")


async def test_a_job_made_anew_under_its_name_starts_from_nothing(scene: Scene) -> None:
    scene.planner.number = 7
    scene.planner.actions = create_missing
    first = await scene.make_job()
    async with scene.operator():
        await scene.round_is(7, "Broken")
    # Nobody collects: the Lease is kept from going with its owner, as when the collector is slow.
    orphan = {"metadata": {"ownerReferences": None}}
    await scene.admin.patch(f"{scene.leases}/mnist-round", orphan, MERGE_PATCH)
    await scene.admin.delete(job_path(scene.namespace, "mnist"))

    async def gone() -> bool:
        try:
            await scene.job()
        except NotFound:
            return True
        return False

    await eventually(gone, "the first job is gone")
    second = await scene.make_job()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    scene.planner.number = 1
    scene.planner.seen.clear()
    async with scene.operator():
        await scene.round_is(1, "Broken")
    record = await scene.record()
    assert record is not None
    assert record.job_uid == second["metadata"]["uid"]
    assert scene.planner.seen[0].record is None, "the former job's record is not this job's"
