"""Many wait at once, or the operator is behind: no pod is taken for silent that may have spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, cast

import pytest

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.round_record import RoundRecord
from elasticjob.rounds.waits import RoundWait, Wait, WaitKey
from elasticjob_operator.act.job_state import Renewals
from elasticjob_operator.observe import cluster_cache as cache_module
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import Unavailable
from elasticjob_operator.observe.seen_lease import read_lease
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state.job_waits import JobWait, sentences
from elasticjob_operator.plan.state.model import (
    Job,
    JobSpec,
    Now,
    Observed,
    Participant,
    Plan,
    Pod,
)
from elasticjob_operator.plan.state.status import JobStatus

JOB = Job("ns", "job", "uid-job", 1, JobSpec(replicas=3, template={}))
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def participant(slot: int, silent: float = 0.0) -> tuple[Pod, Participant]:
    name = f"job-{slot}-0"
    pod = Pod(name, f"uid-{slot}", slot=slot, node="n", running=True, ip="10.0.0.1")
    record = ParticipantRecord(f"id-{slot}", "Joining", "10.0.0.1:4000")
    return pod, Participant(name, pod.uid, record, silent=silent)


def planned(before: Plan | None, silent: float = 0.0, mono: float = 0.0, **observed: Any) -> Plan:
    """A pass over a job of three of which two wait, one of them silent for so long."""
    both = (participant(0, silent), participant(1))
    pods = tuple(pod for pod, _ in both)
    leases = [lease for _, lease in both]
    seen = Observed(
        pods, {lease.pod: lease for lease in leases}, before.record if before else None, **observed
    )
    status = before.status if before else JobStatus(attempts=(0, 0, 0))
    return plan(JOB, status, seen, Now(NOW, mono, "nonce"), before.timers if before else {})


@pytest.mark.parametrize(
    ("waiting", "seconds"), [(0, 5), (250, 5), (251, 10), (1_000, 20), (8_000, 160), (100_000, 2_560)]
)
def test_renewals_are_fifty_a_second_whoever_waits(waiting: int, seconds: int) -> None:
    assert planned(None, waiting=waiting).record.wait_renew_period_seconds == seconds
    assert waiting / seconds <= 50


def test_another_interval_waits_for_a_write_that_is_due_anyway() -> None:
    first = planned(planned(None), mono=10.0)
    assert first.waiting == 2
    second = planned(first, waiting=8_000, mono=11.0)
    assert second.record == first.record
    late = planned(second, waiting=8_000, mono=42.0)
    assert late.record == replace(first.record, wait_renew_period_seconds=160)


def test_the_first_member_of_a_large_round_that_rejoins_is_told_what_holds_when_all_wait() -> None:
    """Of thousands each would write a second time while the others join."""
    size = 1_000
    everybody = [participant(slot) for slot in range(size)]
    pods = tuple(pod for pod, _ in everybody)
    job = replace(JOB, spec=JobSpec(replicas=size, template={}))

    def seen(joined: int, record: RoundRecord | None, waiting: int) -> Observed:
        leases = {
            lease.pod: replace(
                lease, record=replace(lease.record, id=f"new-{slot}", seen_job_uid=job.uid, seen_round=1)
            )
            if slot < joined and lease.record is not None
            else lease
            for slot, (_, lease) in enumerate(everybody)
        }
        return Observed(pods, leases, record, waiting=waiting)

    empty = JobStatus(attempts=(0,) * size)
    first = plan(job, empty, seen(0, None, size), Now(NOW, 0.0, "nonce"), {})
    assert (first.record.phase, first.record.size) == ("Active", size)
    broken = plan(job, first.status, seen(1, first.record, 0), Now(NOW, 1.0, "nonce"), first.timers)
    assert (broken.record.phase, broken.record.wait_renew_period_seconds) == ("Broken", 20)
    later = plan(job, broken.status, seen(size - 1, broken.record, size - 1), Now(NOW, 60.0, "nonce"), {})
    assert (later.record.phase, later.record.wait_renew_period_seconds) == ("Broken", 20)


@pytest.mark.parametrize(("renew_seconds", "judged"), [(5, ("job-0-0",)), (160, ())])
def test_who_waits_is_judged_by_the_interval_that_it_was_told(renew_seconds: int, judged: tuple[str]) -> None:
    decided = planned(planned(None), silent=100.0, renew_seconds=renew_seconds)
    assert decided.judged_silent == judged
    assert any("has not renewed its Lease" in event.message for event in decided.events) is bool(judged)


def test_a_shorter_interval_holds_when_the_longer_is_over() -> None:
    renewals = Renewals()
    assert renewals.update(160, 0.0) == 160
    assert renewals.update(5, 100.0) == 160
    assert renewals.update(5, 400.0) == 160, "the last renewal by the longer one may be this late"
    assert renewals.update(5, 421.0) == 5
    assert renewals.update(10, 422.0) == 10


class Server:
    """Lists of no pods and one Lease, and what it is like to ask for them."""

    def __init__(self) -> None:
        self.write_outages = WriteOutages()
        self.version = 10
        self.seconds = 0.0
        self.fails = False
        self.now = 1_000.0

    def lease(self) -> Json:
        meta = {"namespace": "ns", "name": "job-0-0", "uid": "u", "resourceVersion": str(self.version)}
        labels = {"elasticjob.dev/job-name": "job"}
        return {"metadata": {**meta, "labels": labels}, "spec": {"holderIdentity": "uid-0"}}

    async def get(self, path: str, _query: Mapping[str, str]) -> Json:
        self.now += self.seconds
        if self.fails:
            raise Unavailable("GET", 503, "", "overloaded")
        return {
            "metadata": {"resourceVersion": "1000"},
            "items": [self.lease()] if path.endswith("leases") else [],
        }


def world_of(server: Server) -> ClusterCache:
    cache = ClusterCache(cast(Api, server), (), lambda *_: None, lambda: server.now)
    for informer in cache.informers():
        informer.good_since = 900.0
    cache.leases.put(read_lease(server.lease()))
    return cache


@pytest.mark.parametrize(
    ("version", "seconds", "fails", "spoken"),
    [(10, 0.1, False, False), (11, 0.1, False, True), (10, 2.0, False, True), (10, 0.1, True, True)],
    ids=["silent", "spoke, and the watch is late", "the server is slow", "the server is overloaded"],
)
# shows: hundreds of jobs are applied at once, or the operator or the API server is behind
def test_the_lease_is_looked_at_before_anybody_is_judged_silent(
    version: int, seconds: float, fails: bool, spoken: bool
) -> None:
    server = Server()
    cache = world_of(server)
    for _ in range(40):
        server.now += 1.0
        cache.continuity("ns")
    assert cache.observe(JOB).leases["job-0-0"].silent == 40.0
    server.version, server.seconds, server.fails = version, seconds, fails
    with pytest.raises(Unavailable) if fails else nullcontext():
        asyncio.run(cache.confirm_silence(JOB, ["job-0-0"]))
    silent = cache.observe(JOB).leases["job-0-0"].silent
    assert silent == (0.0 if spoken else pytest.approx(40.0 + 2 * seconds))


def test_silence_that_begins_again_is_no_renewal() -> None:
    """Of two, the one that accused a leader whose node had died was taken for the broken one."""
    server = Server()
    cache = world_of(server)
    for _ in range(5):
        server.now += 1.0
        cache.continuity("ns")
    server.fails = True
    with pytest.raises(Unavailable):
        asyncio.run(cache.confirm_silence(JOB, ["job-0-0"]))
    heard = cache.observe(JOB).leases["job-0-0"]
    assert (heard.silent, heard.renewed) == (0.0, 5.0)
    for informer in cache.informers():
        informer.good_since = server.now  # a new watch, which has listed the Lease
    server.now += 1.0
    heard = cache.observe(JOB).leases["job-0-0"]
    assert (heard.silent, heard.renewed) == (1.0, float("inf"))
    server.version += 1
    cache.leases.put(read_lease(server.lease()))
    server.now += 1.5
    heard = cache.observe(JOB).leases["job-0-0"]
    assert (heard.silent, heard.renewed) == (1.5, 1.5)


def test_while_a_watch_is_late_nobody_is_silent_and_all_waits_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "_PULSE_SECONDS", 0.0)
    server = Server()
    cache = world_of(server)
    before = cache.continuity("ns")
    server.version = 20
    cache.saw_lease(server.lease())
    for _ in range(20):
        server.now += 1.0
        cache.continuity("ns")
    assert cache.behind()

    async def pulse() -> None:
        task = asyncio.create_task(cache.pulse())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(pulse())
    assert cache.observe(JOB).leases["job-0-0"].silent == 0.0
    assert cache.continuity("ns") != before


def test_the_plan_lists_what_it_waits_for_with_limits_and_reasons() -> None:
    first = planned(None)
    (wait,) = first.waits
    assert (wait.key, wait.limit, wait.left) == (WaitKey(JobWait.SCHEDULING, "slot 2"), 5.0, 5.0)
    assert wait.reason == "for the scheduler to decide on a new pod"
    later = planned(first, mono=2.0)
    assert [one.left for one in later.waits if one.key == wait.key] == [3.0]
    assert wait.key not in {one.key for one in planned(later, mono=6.0).waits}, "what is over is none"


def test_what_it_waits_for_is_told_in_words_with_names_and_without_what_only_paces_writes() -> None:
    waits = [
        Wait(WaitKey(JobWait.SCHEDULING, "job-0-0"), 5.0, 4.2),
        Wait(WaitKey(JobWait.SCHEDULING, "job-1-0"), 5.0, 4.1),
        Wait(WaitKey(JobWait.STATUS_THROTTLE), 1.0, 0.5),
        Wait(WaitKey(JobWait.UNJOINED, "uid-2"), 60.0, 59.6),
        Wait(WaitKey(RoundWait.REJOIN, 3), 45.0, -0.2),
        Wait(WaitKey(JobWait.ACTIVE_DEADLINE), 31_536_000.0, 1e7),
    ]
    assert sentences(waits, {"uid-2": "job-2-0"}) == [
        "waits for the scheduler to decide on a new pod: job-0-0, job-1-0, 5 of 5 s left",
        "waits for a running pod to join: job-2-0, 60 of 60 s left",
        "waits for the members of the previous round to rejoin: round 3, 0 of 45 s left",
        "waits for the job to end before it fails (activeDeadlineSeconds): 10000000 of 31536000 s left",
    ]
