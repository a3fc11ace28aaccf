"""The round Lease never goes back, whatever comes over the watch while a pass is writing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticjob.contract.records import RoundRecord
from elasticjob_operator.act.memory import Memory, Stale
from elasticjob_operator.act.projection import Projector
from elasticjob_operator.plan.model import Job, JobSpec

JOB = Job("default", "mnist", "uid", 1, JobSpec())
PLANNED = RoundRecord("uid", 2, "Active", "ours", ("id-1",), "10.0.0.1:4000")


def projector(there: RoundRecord) -> Projector:
    lease = SimpleNamespace(
        record=there, owner="uid", version=7, uid="lease", name="mnist-round", texts=[""] * 4
    )
    return Projector(cast(Any, None), cast(Any, SimpleNamespace(round_lease=lambda _: lease)), lambda: 0.0)


@pytest.mark.parametrize(
    "there",
    [replace(PLANNED, number=3), replace(PLANNED, phase="Broken"), replace(PLANNED, nonce="theirs")],
    ids=["a later round", "a later phase", "another such round"],
)
def test_a_lease_that_got_ahead_after_the_check_is_not_written_over(there: RoundRecord) -> None:
    with pytest.raises(Stale):
        asyncio.run(projector(there).write(JOB, PLANNED, Memory()))
