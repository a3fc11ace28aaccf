"""Events of a job: none is lost to others of which there may be very many."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.job_state import EventState
from elasticjob_operator.observe.client import Api
from elasticjob_operator.plan.state.model import Event, Job, JobSpec

JOB = Job("ns", "job", "uid", 1, JobSpec())


class Sent:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def create(self, _path: str, body: dict[str, Any]) -> None:
        self.reasons.append(body["reason"])


def test_events_of_a_frequent_kind_leave_a_part_of_the_burst_to_others() -> None:
    sent, state = Sent(), EventState()
    recorder = Recorder(cast(Api, sent), lambda: 0.0, spawn=cast(Any, None))
    many = [Event("PodEndedEarly", f"mnist-{slot}-0 ended", True, frequent=True) for slot in range(100)]
    rounds = [Event("RoundPublished", f"round {number} begins") for number in range(100)]
    asyncio.run(recorder.deliver(JOB, many, state))
    asyncio.run(recorder.deliver(JOB, rounds, state))
    assert sent.reasons == ["PodEndedEarly"] * 15 + ["RoundPublished"] * 10
