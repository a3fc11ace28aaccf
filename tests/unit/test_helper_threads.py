"""Threads that rounds depend on: an exception that nobody expects neither ends one nor passes in silence."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from torch.distributed import PrefixStore

from devcluster.wait import wait_for
from elasticjob.contract.limits import Limits
from elasticjob.core.participant import Membership
from elasticjob.drain import agreement as drain_module
from elasticjob.drain.agreement import Drain
from elasticjob.drain.board import StopBoard
from elasticjob.store.connection import KeyValueStore
from elasticjob.store.server import serve
from elasticjob.watch.heartbeats import (
    ENDPOINT_KEY,
    HEARTBEAT_KEY,
    NO_STEP,
    STEP_KEY,
    Heartbeats,
)
from elasticjob.watch.member_flags import MemberFlag
from elasticjob.watch.step_files import StepReader
from elasticjob.worker.progress import StepFile
from elasticjob.worker.stopping import GOES_ON, NOTHING_ASKED, STOP_SUFFIX, STOPPED, map_word
from elasticjob.workers import processes, terminator
from elasticjob.workers.exits import WorkerExitWatcher
from elasticjob.workers.speakers import Speakers
from elasticjob.workers.terminator import WorkerTerminator
from elasticjob.workers.torch_agent import AgentWorker
from tests.unit.listening import Listening, nothing

SECONDS = 30


class Unexpected(Exception):
    pass


def fails(times: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, which raises the first ``times`` times."""
    left = iter(range(times))

    def call(*args: Any) -> Any:
        if next(left, None) is not None:
            raise Unexpected
        return real(*args)

    return call


def member(port: int, rank: int, size: int, limits: Limits | None = None) -> Membership:
    return Membership("uid", 1, "n1", f"id-{rank}", rank, size, f"127.0.0.1:{port}", limits or Limits())


def tracebacks(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.exc_info and one.name == name and one.levelno >= 30]


@pytest.fixture
def board(tmp_path: Path) -> StopBoard:
    """Of one worker, which has gone on from step 7."""
    found = StopBoard(str(tmp_path), 1)
    word(tmp_path)[0] = 7 << 2 | GOES_ON
    return found


def word(folder: Path) -> memoryview[int]:
    return map_word(str(folder / f"0{STOP_SUFFIX}"), os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("what", ["take_part", "first_possible_step", "stopped_at", "stopped"])
def test_a_drain_goes_on_after_an_error(
    board: StopBoard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    said: list[int] = []
    stopped: Callable[[int], None] = said.append
    if what == "stopped":
        stopped = fails(2, stopped)
    else:
        monkeypatch.setattr(board, what, fails(2, getattr(board, what)))
    server = serve()
    one = Drain(member(server.port, 0, 1), board, stopped, lambda: "")
    one.start()
    wait_for(lambda: board._asked[0] == 8 + 1, SECONDS, "its worker is to stop at step 8")
    word(tmp_path)[0] = 8 << 2 | STOPPED
    wait_for(lambda: said == [8], SECONDS, "the leader says so")
    assert len(tracebacks(caplog, "elasticjob.drain.agreement")) == 1
    one.close()


def test_workers_are_not_held_for_ever_by_an_error(
    board: StopBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain_module, "AGREE_SECONDS", 0.2)
    monkeypatch.setattr(board, "first_possible_step", fails(1_000_000, board.first_possible_step))
    one = Drain(member(1, 0, 1), board, nothing, lambda: "")
    one.start()
    wait_for(lambda: "the drain is given up" in caplog.text, SECONDS, "it gives up")
    assert board._asked[0] == NOTHING_ASKED


def test_no_step_is_guessed_where_a_worker_cannot_be_asked(
    board: StopBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that stop at different steps wait for each other in the next one."""
    assert board.take_part()
    assert board.first_possible_step() == 8

    def scan(_: Speakers) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Speakers, "scan", scan)
    assert board.first_possible_step() is None
    monkeypatch.setattr(drain_module, "AGREE_SECONDS", 0.2)
    one = Drain(member(1, 0, 1), board, nothing, lambda: "")
    one.start()
    wait_for(lambda: not one._thread.is_alive(), SECONDS, "it ends")
    assert board._asked[0] == NOTHING_ASKED


class Workers:
    """One worker, as ``RoundWorkers`` lists it."""

    def __init__(self, pid: int) -> None:
        self.mark_stopping = fails(2, nothing)
        self._one = AgentWorker(0, 0, pid, born(pid))

    def listed(self) -> tuple[AgentWorker, ...]:
        return (self._one,)


def born(pid: int) -> int:
    found = processes.find(pid)
    assert found is not None
    return found.born


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_workers_of_a_round_that_is_over_are_killed_after_an_error(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(terminator, "AGAIN_SECONDS", 0.05)
    workers: Any = Workers(sleeper.pid)

    class Core:
        membership = member(1, 0, 1)

        def round_hung(self) -> bool:
            return False

    core: Any = Core()
    WorkerTerminator(core, 0.0, lambda: workers).kill_in_time()
    assert sleeper.wait(SECONDS) == -9
    assert len(tracebacks(caplog, "elasticjob.workers.terminator")) == 1


def test_exits_are_seen_where_the_workers_could_not_be_listed(sleeper: subprocess.Popen[bytes]) -> None:
    watcher = WorkerExitWatcher(fails(2, lambda: {3: sleeper.pid}))
    watcher.start()
    wait_for(lambda: watcher._running, SECONDS, "it watches")
    sleeper.kill()
    wait_for(lambda: [one.local_rank for one in watcher.exits(1)] == [3], SECONDS, "it has ended")
    watcher.stop()


@pytest.mark.parametrize("what", ["steps", "flag", "looked", "progressed", "verify"])
def test_a_loss_is_noticed_whatever_else_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Also by a leader whose worker's steps, say, cannot be read; and a member sends heartbeats then."""
    server, own = serve(), socket.create_server(("127.0.0.1", 0))
    limits = Limits(heartbeat_period=0.1)
    store = cast(KeyValueStore, PrefixStore(member(server.port, 0, 2).prefix, server))
    for rank, port in enumerate((server.port, own.getsockname()[1])):
        store.multi_set(
            [f"{HEARTBEAT_KEY}{rank}", f"{STEP_KEY}{rank}", f"{ENDPOINT_KEY}{rank}"],
            ["0", str(NO_STEP), f"127.0.0.1:{port}"],
        )
    never = fails(1_000_000, nothing)
    lost: list[set[int]] = []
    agents = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        StepFile(str(folder / "0")).write(5)
        steps = StepReader(str(folder))
        if what == "steps":
            steps.read = never  # type: ignore[method-assign]
        agents.append(
            Heartbeats(
                member(server.port, rank, 2, limits),
                steps,
                Listening(
                    lost=lambda found: lost.append(set(found)),
                    looked=never if what == "looked" else nothing,
                    progressed=never if what == "progressed" else nothing,
                    verify_source=never if what == "verify" else nothing,
                ),
                [MemberFlag("a/", never if what == "flag" else lambda: True, nothing)],
            )
        )
    for agent in agents:
        agent.start()
    wait_for(lambda: int(store.get(f"{HEARTBEAT_KEY}1")) > 5, SECONDS, "the member sends heartbeats")
    assert lost == []
    agents[1].stop()
    own.close()
    wait_for(lambda: {1} in lost, SECONDS, "the member is lost")
    agents[0].stop()
    if what != "verify":
        assert tracebacks(caplog, "elasticjob.watch.heartbeats")
