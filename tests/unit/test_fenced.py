"""A round is fenced when each of an agent's workers has opened checkpoints, whatever LOCAL_RANK says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticjob.contract import names
from elasticjob.worker import fenced
from elasticjob.workers.speakers import Speakers, all_say
from elasticjob.workers.torch_agent import AgentWorker


def told(folder: Path, *pids: int) -> Speakers:
    """Of workers with these processes, of whom those with a file have said that they are fenced."""
    workers = [AgentWorker(rank, rank, pid, -1) for rank, pid in enumerate(pids)]
    return Speakers(str(folder), fenced.SUFFIX, lambda: workers)


def test_a_worker_says_it_whatever_its_local_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.PROGRESS_DIR_ENV, str(tmp_path))
    monkeypatch.setenv(names.ROUND_ENV, "1")
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    fenced.say()

    assert all_say(told(tmp_path, os.getpid()), 1)


def test_outside_a_round_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.PROGRESS_DIR_ENV, str(tmp_path))
    monkeypatch.delenv(names.ROUND_ENV, raising=False)

    fenced.say()

    assert list(tmp_path.iterdir()) == []


def test_one_worker_that_has_not_said_it_is_enough_for_no(tmp_path: Path) -> None:
    (tmp_path / f"11.1.11{fenced.SUFFIX}").touch()
    (tmp_path / f"12.11.11{fenced.SUFFIX}").touch()  # a second process of the same worker

    assert not all_say(told(tmp_path, 11, 21), 2)

    (tmp_path / f"21.1.21{fenced.SUFFIX}").touch()
    assert all_say(told(tmp_path, 11, 21), 2)


def test_a_process_that_is_no_worker_s_says_nothing_for_workers(tmp_path: Path) -> None:
    (tmp_path / f"31.1.31{fenced.SUFFIX}").touch()

    assert not all_say(told(tmp_path, 11), 1)


@pytest.mark.parametrize("workers", [None, 0])
def test_without_the_number_of_workers_the_operator_waits_for_proof(
    tmp_path: Path, workers: int | None
) -> None:
    assert not all_say(told(tmp_path), workers)
    assert not all_say(told(tmp_path / "gone"), 1)
