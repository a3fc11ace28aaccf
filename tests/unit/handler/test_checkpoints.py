"""``Checkpoints`` of one rank, between rounds and jobs."""

from __future__ import annotations

import atexit
import errno
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, cast

import pytest
import torch
import torch.distributed as dist

from elasticjob.checkpoint import (
    Checkpoints,
    LostRankError,
    NotSharedError,
    StaleRoundError,
    TrainState,
    liveness,
    records,
)
from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.checkpoint.records import Marker, Name
from elasticjob.checkpoint.storage import Folder
from elasticjob.worker import stopping

Begin = Callable[[int], Checkpoints]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begin a round of job A."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "A")

    def begun(number: int) -> Checkpoints:
        monkeypatch.setenv("ELASTICJOB_ROUND", str(number))
        return Checkpoints(tmp_path / "run", keep=1)

    return begun


def test_an_error_of_torch_is_said_before_what_it_means_if_it_is_that_of_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU without memory was said to be a lost rank, and what was wrong stood last."""

    def fails() -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    ranks = Ranks(20)
    ranks.group = cast(dist.ProcessGroup, object())
    with pytest.raises(LostRankError, match=r"^CUDA out of memory \(rank 3 was in a step .* than 20 s, "):
        ranks.together(fails)


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


def newcomer_of(tmp_path: Path, *, meanwhile: Callable[[], None] = lambda: None) -> Directory:
    """Of another job on another machine; ``meanwhile`` is called each second while it watches."""
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        meanwhile()

    me = records.holder_of("B", "", "b-0", "")
    return Directory(Folder(), str(tmp_path / "run"), me, keep=1, pause=pause, clock=lambda: now)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can see by its process id whether a process lives."""
    monkeypatch.setattr(liveness, "lives", lambda _: None)


def fails(checkpoints: Checkpoints) -> None:
    with pytest.raises(ZeroDivisionError), checkpoints:
        raise ZeroDivisionError


def stops(checkpoints: Checkpoints) -> None:
    """For a planned change, for which the script leaves its loop."""
    link = stopping.Link([0], [1])
    stopping._link = link
    with checkpoints:
        assert stopping.should_stop(1)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("ends", [fails, stops])
def test_between_two_rounds_of_a_job_no_other_one_begins(
    ends: Callable[[Checkpoints], None], begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_link", None)
    monkeypatch.setattr(atexit, "register", lambda _: None)
    ends(begin(1))
    later: list[Checkpoints] = []

    def next_round() -> None:
        if not later:
            later.append(begin(2))
        later[0]._directory.beat()

    with pytest.raises(StaleRoundError, match="in use by round 2 of job A"):
        newcomer_of(tmp_path, meanwhile=next_round).begin(1)
    later[0].save(1, {"step": 1})
    later[0].close()
    newcomer_of(tmp_path).begin(1)


@pytest.mark.usefixtures("elsewhere")
def test_after_a_job_that_does_not_go_on_another_one_begins_in_a_while(begin: Begin, tmp_path: Path) -> None:
    fails(begin(1))
    watched: list[None] = []
    newcomer_of(tmp_path, meanwhile=lambda: watched.append(None)).begin(1)
    assert watched


def test_a_half_that_is_not_shared_is_removed(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(held: Directory, name: Name, marker: Marker) -> None:
        raise NotSharedError(f"{held.folder(name)}: {sorted(marker.files)} are not seen")

    with begin(1) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(Directory, "complete", complete)
            for step in (1, 2):
                checkpoints.save(step, {"step": step})
                with pytest.raises(NotSharedError, match=f"s0000000{step}: .* are not seen"):
                    checkpoints.wait()
                assert list((tmp_path / "run").glob("checkpoint-*")) == []
        checkpoints.save(3, {"step": 3})


def test_what_a_later_round_has_begun_comes_before_what_has_failed(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(held: Directory, name: Name, _: Marker) -> None:
        begin(2)
        raise NotSharedError(held.folder(name))

    checkpoints = begin(1)
    monkeypatch.setattr(Directory, "complete", complete)
    checkpoints.save(1, {"step": 1})
    with pytest.raises(StaleRoundError, match=r"round 2 of job A .* has begun"):
        checkpoints.wait()


def test_an_index_that_cannot_be_read_is_an_error_of_the_system(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(1) as checkpoints:
        checkpoints.save(1, {"step": 1})
    original = Folder.stream

    def stream(self: Folder, path: str, mode: str) -> AbstractContextManager[IO[bytes]]:
        if mode == "rb" and path.endswith(".metadata"):
            raise OSError(errno.EIO, "Input/output error", path)
        return original(self, path, mode)

    monkeypatch.setattr(Folder, "stream", stream)
    later = begin(2)
    later._verify = False
    with pytest.raises(OSError, match=r"rank 0 cannot read .*-s00000001: .*Input/output error") as raised:
        later.resume({"step": 0})
    assert raised.value.errno == errno.EIO
    later.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every is 0, expected 1 or more"),
        ({"memory_every": 0}, "memory_every is 0"),
        ({"every": 5, "memory_every": 2}, "memory_every is 2 and every is 5, .* a multiple of it"),
        ({"every": 1, "memory_every": 5}, "a multiple of it"),
    ],
)
def test_steps_that_do_not_go_together_are_refused(
    tmp_path: Path, settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path, **settings)  # type: ignore[arg-type]


def test_memory_without_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="what is only in memory is lost when the job is suspended"):
        Checkpoints(None, memory_every=1)  # type: ignore[arg-type]


def stored(tmp_path: Path) -> list[int]:
    """The steps of the complete checkpoints."""
    return [int(path.parent.name[-8:]) for path in sorted((tmp_path / "run").glob("*/complete.json"))]


def test_each_few_steps_go_to_the_folder_and_what_is_to_be_saved_now(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run", every=4, keep=10) as checkpoints:
        for step in range(1, 10):
            checkpoints.save(step, {"step": step}, now=step == 9)
    assert stored(tmp_path) == [4, 8, 9]


def test_entries_of_the_state_stay_what_they_are(begin: Begin) -> None:
    """With torch 2.4, DCP puts plain dictionaries in their place, and round 3 found no weights."""
    for number in (1, 2, 3):
        model = torch.nn.Linear(1, 1)
        train = TrainState(model, torch.optim.SGD(model.parameters(), lr=1.0))
        state = {"train": train, "step": 0}
        with begin(number) as checkpoints:
            assert checkpoints.resume(state) == number - 1
            assert state == {"train": train, "step": number - 1}
            assert model.bias.item() == number - 1 or number == 1
            torch.nn.init.constant_(model.bias, number)
            checkpoints.save(number, {**state, "step": number})


def test_the_step_that_training_stops_after_goes_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_link", None)
    monkeypatch.setattr(atexit, "register", lambda _: None)
    with Checkpoints(tmp_path / "run", every=100, keep=10) as checkpoints:
        checkpoints.save(1, {"step": 1})
        stopping._link = stopping.Link([0], [3])
        assert stopping.should_stop(2)
        checkpoints.save(2, {"step": 2})
    assert stored(tmp_path) == [2]


def test_without_memory_the_log_says_where_saves_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ELASTICJOB_MEMORY_AGENT", raising=False)
    caplog.set_level("INFO", logger="elasticjob.checkpoint")
    with Checkpoints(tmp_path / "run", every=2, memory_every=1) as checkpoints:
        for step in range(1, 4):
            checkpoints.save(step, {"step": step})
    assert stored(tmp_path) == [2]
    assert f"the job has no memory for checkpoints; saves go to {tmp_path / 'run'} only" in caplog.text
