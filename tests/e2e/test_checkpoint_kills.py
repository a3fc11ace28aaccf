"""One rank is lost at each moment of a resume and of a save: the others do not wait for it, and the next
start resumes and saves again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checkpoint_moments import RANK_0_MOMENTS, RESUME_MOMENTS, SAVE_MOMENTS
from tests.e2e.checkpoint_rounds import Run

TIMEOUT_SECONDS = 20
DEADLINE_SECONDS = 90
"""Far more than ``TIMEOUT_SECONDS``, and less than the five times that gloo tries a connection for."""

EACH = [
    *((moment, rank) for moment in (*RESUME_MOMENTS, *SAVE_MOMENTS) for rank in (0, 1)),
    *((moment, 0) for moment in RANK_0_MOMENTS),
]
QUICK = {
    ("kill", "load-data", 0),
    ("kill", "marked", 0),
    ("stop", "shard", 1),
}


def cases(how: str) -> list[Any]:
    return [
        pytest.param(
            how,
            moment,
            rank,
            id=f"{how}-{moment}-{rank}",
            marks=[] if (how, moment, rank) in QUICK else [pytest.mark.slow],
        )
        for moment, rank in EACH
    ]


@pytest.mark.parametrize(("how", "moment", "rank"), [*cases("kill"), *cases("stop")])
def test_the_others_do_not_wait_and_the_next_start_saves(
    tmp_path: Path, how: str, moment: str, rank: int
) -> None:
    """Those that are left stay alive, so that no closed connection of theirs helps; one that hangs closes
    none."""
    run = Run(tmp_path, str(tmp_path / "checkpoints"), {})
    run.train(3, 1, 2, wrapper="ddp")
    trouble: dict[str, Any] = {how: (moment, rank, 4)}
    with run.round(3, 2, 4, wrapper="ddp", timeout=TIMEOUT_SECONDS, stay=True, **trouble) as going:
        outcomes = going.survivors(2, DEADLINE_SECONDS)
    for outcome in outcomes:
        assert outcome["error"].startswith("LostRankError: "), outcome
        assert "another rank was lost, took longer than 20 s, or cannot be reached" in outcome["error"]
    again = run.train(2, 3, 6, wrapper="ddp")
    assert again[0]["resumed"] == (4 if moment == "marked" else 2)
    assert run.names()[-1] == "r000003-s00000006"
