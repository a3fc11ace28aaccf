"""A round of which members leave without giving a reason: its end waits for those who leave with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticjob.rounds.causes import Cause
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.plan.state.model import Job, Now, Observed, Plan
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus, RoundEnd
from tests.integration.shell.scene import Operator, Scene, until
from tests.integration.shell.stub import StubPlanner, project

pytestmark = pytest.mark.cluster

STATUS = "PATCH elasticjobs/mnist/status"


class RoundThatEnds(StubPlanner):
    """Round 1 ends for ``cause``. ``left``: how many members have left at each pass, the last from then on;
    when all have, there is round 2."""

    def __init__(self, *left: int, members: int = 4, cause: Cause = Cause.MEMBER_LEFT) -> None:
        super().__init__()
        self.members = members
        self.number, self.phase = 1, "Active"
        self.ends = False
        self.passes = 0
        self.left = left
        self._cause = cause

    def __call__(
        self, job: Job, status: JobStatus, observed: Observed, now: Now, timers: Mapping[WaitKey, float]
    ) -> Plan:
        left = 0
        if self.ends:
            left = self.left[min(self.passes, len(self.left) - 1)]
            self.passes += 1
            self.number, self.phase = (2, "Active") if left == self.members else (1, "Broken")
        self.participants = tuple(
            ParticipantStatus(
                f"id-{rank}", f"mnist-{rank}-0", "u", "Left" if rank < left else "Member", group_rank=rank
            )
            for rank in range(self.members)
        )
        plan = super().__call__(job, status, observed, now, timers)
        if self.phase == "Broken":
            ended = replace(plan.status.current_round, end=RoundEnd(cause=self._cause))
            after = replace(plan.status, current_round=ended)
            return replace(plan, status=after, record=project(job, after))
        return plan


async def _end(scene: Scene, operator: Operator, planner: RoundThatEnds) -> int:
    """The round ends. Returns how often the status was written until no more is to be done."""
    await scene.round_is(1, "Active")
    before = scene.wire.writes.count(STATUS)
    planner.ends = True
    operator.enqueue()
    number, phase = (2, "Active") if planner.left[-1] == planner.members else (1, "Broken")
    await scene.round_is(number, phase)
    await until(lambda: not operator.controller.queue.working, "the pass has ended")
    return scene.wire.writes.count(STATUS) - before


async def test_members_that_leave_together_cost_one_write(scene: Scene) -> None:
    scene.planner = planner = RoundThatEnds(1, 3, 4)
    await scene.make_job()
    async with scene.operator() as operator:
        assert await _end(scene, operator, planner) == 1
    assert planner.passes >= 3


async def test_if_no_other_leaves_the_round_ends_a_moment_later(scene: Scene) -> None:
    scene.planner = planner = RoundThatEnds(2)
    await scene.make_job()
    async with scene.operator() as operator:
        assert await _end(scene, operator, planner) == 1
    assert planner.passes >= 2
    waited, ended = planner.seen_at[-planner.passes :][:2]
    assert ended - waited >= 0.01


async def test_a_cause_that_is_known_is_not_waited_for(scene: Scene) -> None:
    scene.planner = planner = RoundThatEnds(1, 4, cause=Cause.WORKER_FAILED)
    await scene.make_job()
    async with scene.operator() as operator:
        assert await _end(scene, operator, planner) == 2, "the end, and the next round"


async def test_members_that_leave_one_after_the_other_hold_nobody_up_for_long(scene: Scene) -> None:
    scene.planner = planner = RoundThatEnds(*range(1, 60), members=80)
    await scene.make_job()
    async with scene.operator() as operator:
        written: list[JobStatus] = []
        operator.controller.reconciler.decided = lambda _before, after: written.append(after)
        await _end(scene, operator, planner)
    end = next(status for status in written if status.current_round.phase == "Broken")
    assert sum(member.state == "Left" for member in end.members()) <= 12
