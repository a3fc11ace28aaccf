"""What makes a process not alive, or not ready. That of the real process is in ``tests/integration``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import ClientSession

from elasticjob.rounds.waits import RoundWait, Wait, WaitKey
from elasticjob_operator.app import _stand
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.health import Health
from elasticjob_operator.leadership.core import Place, Timing
from elasticjob_operator.leadership.elector import Elector
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.probe_server import from_inside
from elasticjob_operator.settings import Settings

PODS = "/api/v1/namespaces/here/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/here/leases"
NODES = "/api/v1/nodes"
ACCOUNTS = "/api/v1/namespaces/here/serviceaccounts"
JOBS = "/apis/elasticjob.dev/v1alpha1/namespaces/here/elasticjobs"
SILENCE = 180.0


class Nobody:
    """An API that is not asked."""

    def __init__(self) -> None:
        self.write_outages = WriteOutages()


class Follower:
    """An elector that does not lead."""

    def report(self) -> dict[str, Any]:
        return {"leading": False, "leader": "other_1"}


class Scene:
    """A controller that has heard of everything at 0, and whose clock is the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.api = Nobody()
        settings = Settings(namespaces=("here",), max_silence=SILENCE)
        self.controller = Controller(cast(Api, self.api), settings, clock=lambda: self.now)
        self.asked: list[str] = []
        self.answers: set[str] = {PODS, LEASES, ACCOUNTS, NODES, JOBS}
        self.health = Health(self._ask)
        self.health.controller = self.controller
        for informer in self.controller.cache.informers():
            informer.synced.set()
        self.heard(PODS, LEASES, ACCOUNTS, NODES)

    async def _ask(self, path: str) -> bool:
        self.asked.append(path)
        return path in self.answers

    def heard(self, *paths: str) -> None:
        for informer in self.controller.cache.informers():
            if informer.path in paths:
                informer.last_event_at = informer.good_since = self.now

    def job(self, version: int) -> dict[str, Any]:
        meta = {"name": "job", "namespace": "here", "uid": "u", "resourceVersion": str(version)}
        return {"metadata": {**meta, "generation": 1}, "spec": {"replicas": 2}, "status": {}}


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_a_silent_watch_while_the_api_server_answers(scene: Scene) -> None:
    scene.now = SILENCE
    assert await scene.health.not_alive() == []
    assert scene.asked == []
    scene.heard(LEASES, ACCOUNTS, NODES)
    scene.now = SILENCE + 1
    assert await scene.health.not_alive() == [
        f"no event on {PODS} for 181 s, although the API server responds"
    ]
    assert scene.asked == [PODS]


async def test_an_outage_restarts_nobody_and_the_time_after_it_counts_anew(scene: Scene) -> None:
    scene.answers = set()
    for scene.now in (SILENCE + 1, 5 * SILENCE):
        assert await scene.health.not_alive() == []
    assert set(scene.asked) == {PODS, LEASES, ACCOUNTS, NODES}
    scene.answers = {PODS, LEASES, ACCOUNTS, NODES}
    scene.now = 6 * SILENCE
    assert await scene.health.not_alive() == []
    scene.now += 1
    assert len(await scene.health.not_alive()) == 4


async def test_what_is_forbidden_for_good_is_not_waited_for(scene: Scene) -> None:
    nodes = list(scene.controller.cache.informers())[-1]
    nodes.unavailable, nodes.good_since = True, None
    scene.now = SILENCE + 1
    scene.heard(PODS, LEASES, ACCOUNTS)
    assert await scene.health.not_ready() == []
    assert scene.asked == []


async def test_the_watch_of_jobs_owes_what_a_list_has_shown(scene: Scene) -> None:
    scene.controller.source.watched(scene.job(5))
    scene.now = 1000.0
    scene.heard(PODS, LEASES, ACCOUNTS, NODES)
    assert await scene.health.not_alive() == []
    scene.controller.source.changed(scene.job(6))
    for scene.now in (1001.0, 1001.0 + SILENCE):
        scene.heard(PODS, LEASES, ACCOUNTS, NODES)
        assert await scene.health.not_alive() == []
    scene.controller.source.changed(scene.job(7))  # it owes since version 6
    scene.now += 1
    assert await scene.health.not_alive() == [
        f"no event on {JOBS} for 181 s, although the API server responds"
    ]
    scene.controller.source.watched(scene.job(6))  # late, but it lives
    assert await scene.health.not_alive() == []
    scene.controller.source.watched(scene.job(7))
    scene.now += 10 * SILENCE
    scene.heard(PODS, LEASES, ACCOUNTS, NODES)
    assert await scene.health.not_alive() == []


# shows: the operator's watches bring nothing, a pass hangs, or its event loop is stuck
async def test_a_pass_hangs_if_nothing_fails_meanwhile(scene: Scene) -> None:
    limit = scene.controller.settings.max_pass
    scene.controller.queue.open()
    scene.controller.source.watched(scene.job(5))
    (entry,) = scene.controller.registry
    assert scene.controller.queue.get(entry.request) is not None, "a pass begins, and does not end"
    scene.now = limit + 1
    scene.heard(PODS, LEASES, ACCOUNTS, NODES)
    assert await scene.health.not_alive() == [f"reconciliation of here/job has hung for {limit + 1:.0f} s"]
    scene.api.write_outages.failed("/api/v1/namespaces/other/pods", scene.now - 1, scene.now - 1)
    scene.api.write_outages.got_through("/api/v1/namespaces/other/pods", scene.now)
    assert await scene.health.not_alive() != [], "what fails for another job excuses nobody"
    scene.api.write_outages = WriteOutages()
    scene.api.write_outages.failed(LEASES, 0.0, 0.0)
    scene.api.write_outages.got_through(LEASES, limit)  # the API server held it up until then
    assert await scene.health.not_alive() == []
    scene.now += limit
    scene.heard(PODS, LEASES, ACCOUNTS, NODES)
    assert await scene.health.not_alive() == [f"reconciliation of here/job has hung for {limit + 1:.0f} s"]


async def test_tasks_that_end_and_an_election_that_hangs(scene: Scene) -> None:
    async def broken() -> None:
        raise KeyError("items")

    task = scene.controller.keep_running(broken(), "relist")
    scene.health.election = asyncio.create_task(asyncio.sleep(0))
    place = Place("system", "operator", Timing())
    scene.health.elector = Elector(cast(Api, scene.api), place, "me", now=lambda: scene.now)
    await asyncio.gather(task, scene.health.election, return_exceptions=True)
    assert await scene.health.not_alive() == [
        "the task relist has ended",
        "the task for leader election has ended",
    ]
    scene.health.election = None
    scene.controller.ended.clear()
    scene.health.elector._busy_since = 0.0
    scene.now = scene.controller.settings.max_pass + 1
    scene.heard(PODS, LEASES, ACCOUNTS, NODES)
    assert await scene.health.not_alive() == ["leader election has hung for 601 s"]


# shows: the operator lacks a right, or the resource definition is not there
async def test_who_has_not_listed_everything_does_not_stand_for_election(scene: Scene) -> None:
    class Election:
        stands = False

        async def run(self, *_: object, ready: Callable[[], Awaitable[None]]) -> None:
            await ready()
            self.stands = True

    election = Election()
    leases = list(scene.controller.cache.informers())[1]
    leases.synced.clear()
    standing = asyncio.create_task(_stand(cast(Elector, election), scene.controller))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not election.stands
    leases.synced.set()
    await standing
    assert election.stands


async def test_who_starts_is_alive_and_not_ready(scene: Scene) -> None:
    pods = next(iter(scene.controller.cache.informers()))
    pods.synced.clear()
    assert await scene.health.not_ready() == [f"{PODS} has not been listed yet"]
    pods.synced.set()
    pods.interrupted()
    assert await scene.health.not_ready() == [], "watches end now and then, and are opened again"
    scene.now += 3
    assert await scene.health.not_ready() == [f"the watch of {PODS} is interrupted"]
    assert await scene.health.not_alive() == []
    scene.health.controller = None
    assert await scene.health.not_ready() == ["starting; the log says what the operator waits for"]
    assert await scene.health.not_alive() == []


async def test_what_jobs_wait_for_is_told_by_who_leads_to_who_is_inside_of_the_pod(scene: Scene) -> None:
    scene.controller.source.watched(scene.job(5))
    (entry,) = scene.controller.registry
    assert scene.health.waits() == ["no job waits for anything"]
    entry.state.planner.waits = (Wait(WaitKey(RoundWait.REJOIN, 2), 45.0, 40.0),)
    entry.state.planner.planned_at, scene.now = 10.0, 13.0
    line = "here/job waits for the members of the previous round to rejoin: round 2, 37 of 45 s left"
    assert scene.health.waits() == [line]

    server = await scene.health.serve("127.0.0.1", 0)
    host, port = server.addresses[0]
    async with ClientSession() as session, session.get(f"http://{host}:{port}/waits") as answer:
        assert (answer.status, await answer.text()) == (200, line + "\n")
    await server.cleanup()

    scene.health.elector = cast(Elector, Follower())
    assert scene.health.waits() == ["this operator stands by; leading: other_1"]


# shows: a client that reaches its health endpoint learns what jobs there are
def test_only_who_is_inside_of_the_pod_is_told_about_jobs() -> None:
    assert all(from_inside(remote) for remote in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"))
    outside = ("10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "fe80::1%eth0", "", "localhost")
    assert not any(from_inside(remote) for remote in outside)
