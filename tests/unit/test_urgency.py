"""Which jobs a new leader looks at first."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from elasticjob_operator.plan.state.model import Exit, Pod
from elasticjob_operator.plan.state.status import (
    Condition,
    JobStatus,
    ParticipantStatus,
    RoundStatus,
)
from elasticjob_operator.plan.urgency import Urgency, urgency

MEMBER = ParticipantStatus("id", "job-0-0", "uid", "Member", slot=0, group_rank=0)
ENDED = Condition("Complete", "True", "Complete", "", datetime(2026, 1, 1, tzinfo=timezone.utc))
POD = Pod("job-0-0", "uid", running=True)


def status(member: ParticipantStatus = MEMBER, phase: str = "Active") -> JobStatus:
    return JobStatus(current_round=RoundStatus(number=1, phase=phase), participants=(member,))


@pytest.mark.parametrize(
    "pod",
    [
        None,
        replace(POD, uid="another"),
        replace(POD, ended=True),
        replace(POD, exit=Exit(137)),
        replace(POD, deleting=True),
        replace(POD, restarts=1),
    ],
    ids=["gone", "another", "ended", "container ended", "deleting", "restarted"],
)
def test_a_lost_member_comes_first(pod: Pod | None) -> None:
    assert urgency(status(), {} if pod is None else {pod.name: pod}) is Urgency.LOSS


def test_what_runs_waits_or_has_ended_comes_later() -> None:
    pods = {POD.name: POD}
    assert urgency(status(), pods) is Urgency.TRAINS
    assert urgency(status(replace(MEMBER, state="Succeeded")), {}) is Urgency.TRAINS
    assert urgency(status(phase="Broken"), pods) is Urgency.WAITS
    assert urgency(JobStatus(), {}) is Urgency.WAITS
    assert urgency(replace(status(), conditions=(ENDED,)), {}) is Urgency.ENDED
    assert Urgency.LOSS < Urgency.WAITS < Urgency.TRAINS < Urgency.ENDED
