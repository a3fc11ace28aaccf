"""The digits example's checkpoints: what a stale process writes never counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.digits.checkpoint import StaleRoundError, Token, checkpoints, claim, save


def write(directory: Path, token: Token, step: int, job: str = "job") -> Path:
    return save(directory, token, step, job, {"weights": torch.full((2,), float(step))})


def test_the_newest_is_of_the_latest_round_and_not_the_highest_step(tmp_path: Path) -> None:
    write(tmp_path, Token(1, 2), 40)
    write(tmp_path, Token(1, 1), 60)
    newest = checkpoints(tmp_path)[-1]
    assert (newest.token, newest.step) == (Token(1, 2), 40)
    assert torch.equal(newest.load()["weights"], torch.tensor([40.0, 40.0]))


def test_a_process_of_an_earlier_round_touches_no_file_of_a_later_one(tmp_path: Path) -> None:
    later = [write(tmp_path, Token(1, 2), step) for step in (40, 60)]
    for step in (60, 80, 100):
        write(tmp_path, Token(1, 1), step)
    assert [item.path for item in checkpoints(tmp_path)[-2:]] == later
    assert checkpoints(tmp_path)[-1].load()["round"] == 2


def test_two_files_are_kept(tmp_path: Path) -> None:
    for step in (20, 40, 60):
        write(tmp_path, Token(1, 1), step)
    write(tmp_path, Token(1, 2), 50)
    assert [(item.token.round, item.step) for item in checkpoints(tmp_path)] == [(1, 60), (2, 50)]
    assert len(list(tmp_path.iterdir())) == 2


def test_half_written_files_are_not_seen(tmp_path: Path) -> None:
    path = write(tmp_path, Token(1, 1), 20)
    (tmp_path / path.with_suffix(".tmp-17").name).write_bytes(b"half")
    assert [item.path for item in checkpoints(tmp_path)] == [path]


def test_the_first_token(tmp_path: Path) -> None:
    assert checkpoints(tmp_path) == []
    assert claim(None, "job", 3) == Token(1, 3)


def test_a_later_round_of_the_same_job_stays_in_its_generation(tmp_path: Path) -> None:
    write(tmp_path, Token(4, 2), 40)
    assert claim(checkpoints(tmp_path)[-1], "job", 3) == Token(4, 3)


def test_a_job_made_again_counts_above_its_predecessor_although_its_rounds_start_anew(
    tmp_path: Path,
) -> None:
    write(tmp_path, Token(1, 9), 40)
    token = claim(checkpoints(tmp_path)[-1], "the job applied again", 1)
    assert token == Token(2, 1)
    assert token > Token(1, 9)


def test_a_leftover_of_an_earlier_round_is_told_to_stop(tmp_path: Path) -> None:
    write(tmp_path, Token(1, 9), 40)
    with pytest.raises(StaleRoundError, match=r"round 9 of job job.* belongs to round 8, which is over"):
        claim(checkpoints(tmp_path)[-1], "job", 8)
