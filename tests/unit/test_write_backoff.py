"""A write that fails holds up itself: the pauses, and what of a batch goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from elasticjob_operator.act import batch as batches
from elasticjob_operator.act.batch import Batch
from elasticjob_operator.act.job_state import Stale, WriteState
from elasticjob_operator.act.owned_kinds import RIGHTS
from elasticjob_operator.act.write_backoff import STATUS, WriteBackoff
from elasticjob_operator.observe.errors import ApiError, Forbidden, TooManyRequests, Unavailable, error_of
from elasticjob_operator.plan.state.model import Event, FailingWrite, Job, JobSpec, Target

JOB = Job("default", "mnist", "uid", 1, JobSpec())
WEBHOOK = 'Internal error occurred: failed calling webhook "pods.example.com": connection refused'
DOWN = Unavailable("POST /pods", 500, "InternalError", WEBHOOK)


def test_pauses_grow_to_half_a_minute_and_end_with_success() -> None:
    backoff = WriteBackoff(jitter=lambda: 1.0)
    now, pauses = 100.0, []
    for _ in range(7):
        backoff.failed(Target("mnist-0-0", "created"), DOWN, now)
        left = backoff.wake_after(now)
        assert left is not None
        assert not backoff.due(Target("mnist-0-0", "created"), now + left - 0.01)
        assert backoff.due(Target("mnist-1-0", "created"), now), "others are tried"
        now += left
        assert backoff.due(Target("mnist-0-0", "created"), now)
        pauses.append(left)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    backoff.done(Target("mnist-0-0", "created"))
    assert backoff.wake_after(now) is None
    assert backoff.failing_writes() == ()


def test_a_retry_after_is_heeded_also_in_a_hurry() -> None:
    backoff = WriteBackoff(jitter=lambda: 1.0)
    backoff.failed(STATUS, TooManyRequests("PATCH /x", 429, "", "slow down", 7.0), 0.0)
    assert not backoff.due(STATUS, 6.9, hurried=True)
    assert backoff.due(STATUS, 7.0)


def test_news_hurries_the_protocol_alone() -> None:
    backoff = WriteBackoff(jitter=lambda: 1.0)
    for target in (STATUS, RIGHTS):
        for _ in range(8):
            backoff.failed(target, DOWN, 0.0)
    assert backoff.due(STATUS, 1.0, hurried=True)
    assert not backoff.due(RIGHTS, 1.0, hurried=True)
    assert not backoff.due(STATUS, 25.0)
    backoff.again(passing=True)
    assert backoff.due(RIGHTS, 1.0)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DOWN, f"{WEBHOOK} (500)"),
        (Forbidden("POST /pods", 403, "", 'pods "mnist-0-0" is forbidden: exceeded quota'), "exceeded quota"),
        (
            Unavailable("POST /pods", 0, "TimeoutError", "time limit"),
            "no answer from the API server (time limit)",
        ),
    ],
)
def test_what_the_planner_is_told(error: ApiError, why: str) -> None:
    backoff = WriteBackoff()
    backoff.failed(Target("mnist-0-0", "created"), error, 0.0)
    assert backoff.failing_writes() == (FailingWrite("mnist-0-0", "created", why),)
    backoff.keep("created", [Target("mnist-1-0", "created")])
    assert backoff.failing_writes() == (), "nobody wants it any more"


def test_a_request_that_etcd_finds_too_large_is_refused_for_good() -> None:
    text = b'{"message": "etcdserver: request is too large"}'
    assert type(error_of("PATCH /x", 500, {}, text)).__name__ == "TooLarge"


class Played:
    """Batches of one job, in the test's own loop."""

    def __init__(self) -> None:
        self.writes = WriteState(WriteBackoff(jitter=lambda: 1.0))
        self.late: list[list[Event]] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        return task

    def batch(self) -> Batch:
        return Batch(JOB, self.writes, asyncio.get_running_loop().time, self.spawn, self.late.append)


@pytest.fixture
async def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(batches, "NO_PROGRESS_SECONDS", 0.05)
    return Played()


async def test_what_hangs_goes_on_behind_the_pass_s_back_and_is_begun_once(played: Played) -> None:
    free, begun = asyncio.Event(), 0

    async def hang() -> None:
        nonlocal begun
        begun += 1
        await free.wait()
        raise DOWN

    for _ in range(2):
        batch = played.batch()
        batch.add(Target("mnist-0-0", "created"), hang, gated=True)
        await batch.wait()
    assert begun == 1
    assert Target("mnist-0-0", "created") not in played.writes.backoff
    free.set()
    await asyncio.gather(*played.tasks)
    assert Target("mnist-0-0", "created") in played.writes.backoff
    assert played.late == [[]], "its end makes a pass"
    assert not played.writes.under_way


async def test_of_many_of_a_kind_few_are_tried_in_vain(played: Played) -> None:
    tried, deleted = [], []
    batch = played.batch()

    def create(name: str) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            tried.append(name)
            await asyncio.sleep(0)
            raise DOWN

        return write

    async def delete() -> None:
        deleted.append(1)

    for slot in range(100):
        batch.add(Target(f"mnist-{slot}-0", "created"), create(f"mnist-{slot}-0"), gated=True)
    batch.add(Target("mnist-0-0", "deleted"), delete, gated=True)
    await batch.wait()
    assert len(tried) == 16
    assert deleted == [1]
    assert len(played.writes.backoff.failing_writes()) == 100
    assert batch.events == [], "it may be over in a moment"


async def test_what_is_stale_or_unforeseen_ends_the_pass(played: Played) -> None:
    for raised in (Stale("gone"), KeyError("x")):
        batch = played.batch()

        async def write(error: Exception = raised) -> None:
            raise error

        batch.add(RIGHTS, write)
        with pytest.raises(type(raised)):
            await batch.wait()
