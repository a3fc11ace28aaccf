"""``Checkpoints`` of one rank, between rounds and jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticjob.checkpoint import Checkpoints
from elasticjob.checkpoint.directory import Directory

Begin = Callable[[int], Checkpoints]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begin a round of job A."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "A")

    def begun(number: int) -> Checkpoints:
        monkeypatch.setenv("ELASTICJOB_ROUND", str(number))
        return Checkpoints(tmp_path / "run", keep=1)

    return begun


def renewals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "elasticjob-claim"]


def test_the_claim_is_renewed_while_it_removes_what_does_not_count(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    others = len(renewals())

    def tidy(_: Directory) -> None:
        seen.append(len(renewals()) - others)
        raise OSError("the store hangs")

    monkeypatch.setattr(Directory, "tidy", tidy)
    with pytest.raises(OSError, match="the store hangs"):
        begin(1)
    assert seen == [1]
    assert len(renewals()) == others, "nobody holds it any more"
