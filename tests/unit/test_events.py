"""Events of a job: which are sent, which are counted up, and for how long they are remembered."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from elasticjob_operator.act import events
from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.job_state import EventState
from elasticjob_operator.observe.client import Api
from elasticjob_operator.plan.state.model import Event, Job, JobSpec

JOB = Job("ns", "job", "uid", 1, JobSpec())


class Sent:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.counts: list[int] = []

    async def create(self, _path: str, body: dict[str, Any]) -> None:
        self.reasons.append(body["reason"])

    async def patch(self, _path: str, body: dict[str, Any], _kind: str) -> None:
        self.counts.append(body["count"])


class Later:
    """A recorder whose clock the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(events, "AFTER_SECONDS", 0.0)
        self.now, self.sent = 0.0, Sent()
        self.recorder = Recorder(cast(Api, self.sent), lambda: self.now, spawn=cast(Any, None))

    def deliver(self, now: float, state: EventState, *messages: str) -> None:
        self.now = now
        found = [Event("RoundBroken", message) for message in messages]
        asyncio.run(self.recorder.deliver(JOB, found, state))


def test_events_of_a_frequent_kind_leave_a_part_of_the_burst_to_others() -> None:
    sent, state = Sent(), EventState()
    recorder = Recorder(cast(Api, sent), lambda: 0.0, spawn=cast(Any, None))
    many = [Event("PodEndedEarly", f"mnist-{slot}-0 ended", True, frequent=True) for slot in range(100)]
    rounds = [Event("RoundPublished", f"round {number} begins") for number in range(100)]
    asyncio.run(recorder.deliver(JOB, many, state))
    asyncio.run(recorder.deliver(JOB, rounds, state))
    assert sent.reasons == ["PodEndedEarly"] * 15 + ["RoundPublished"] * 10


def test_an_event_is_counted_up_within_ten_minutes_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    later, state = Later(monkeypatch), EventState()
    for now in (0.0, 590.0, 1_180.0, 1_781.0, 1_800.0):
        later.deliver(now, state, "round 1 broke")
    assert (len(later.sent.reasons), later.sent.counts) == (2, [2, 3, 2])


def test_what_can_not_be_counted_up_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each job keeps hundreds of long sentences for as long as it exists."""
    later, state = Later(monkeypatch), EventState()
    for number in range(100):
        later.deliver(61.0 * number, state, f"round {number} broke: {'x' * 1_000}")
    assert len(later.sent.reasons) == 100
    assert len(state.sent) == 10
    assert sum(len(text) for key in state.sent for text in key) < 500


def test_jobs_that_send_no_more_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    later, states, other = Later(monkeypatch), [EventState() for _ in range(3)], EventState()
    for now, state in enumerate(states):
        later.deliver(now, state, "the job has ended", "its pods are deleted")
    later.deliver(600.0, other, "round 1 begins")
    assert [len(state.sent) for state in states] == [2, 2, 2]
    later.deliver(601.5, other, "round 2 begins")
    assert [len(state.sent) for state in states] == [0, 0, 2]
    later.deliver(1_300.0, other, "round 3 begins")
    assert [len(state.sent) for state in (*states, other)] == [0, 0, 0, 1]
