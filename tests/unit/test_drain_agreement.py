"""The drain of a round: its members agree on the step at which all stop. Workers are threads, or words in
memory; the store is real, and there is no Kubernetes."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from devcluster.wait import wait_for
from elasticjob.contract.limits import Limits
from elasticjob.core.participant import Membership
from elasticjob.drain import agreement as drain_module
from elasticjob.drain.agreement import Drain
from elasticjob.drain.board import StopBoard
from elasticjob.store.missing_keys import missing_ranks
from elasticjob.store.server import serve
from elasticjob.worker.stopping import (
    ASKED_FILE,
    GOES_ON,
    STOP_SUFFIX,
    STOPPED,
    Link,
    map_word,
)
from elasticjob.workers.torch_agent import AgentWorker


def ignore(step: int) -> None:
    """Of no interest."""
    del step


def member(port: int, rank: int, size: int) -> Membership:
    """A place in a round whose leader's store is at this port."""
    return Membership("uid", 1, "n1", f"id-{rank}", rank, size, f"127.0.0.1:{port}", Limits())


class Rank:
    """A worker as a thread: it meets the others in every step, as in a collective."""

    def __init__(self, folder: Path, meet: threading.Barrier, pause: float) -> None:
        folder.mkdir()
        self.board = StopBoard(str(folder), 1)
        self._meet, self._pause = meet, pause
        own = map_word(str(folder / f"0{STOP_SUFFIX}"), os.O_RDWR | os.O_CREAT)
        self._link = Link(own, map_word(str(folder / ASKED_FILE), os.O_RDWR))
        self.step = 0
        self.broken = False
        self.ends = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ends:
            try:
                self._meet.wait(30)
            except threading.BrokenBarrierError:
                self.broken = not self.ends
                return
            time.sleep(self._pause)  # ranks are apart by up to a step
            self.step += 1
            self._link.mine[0] = self.step << 2 | GOES_ON
            if self._link.asked[0] and self._link.must_stop(self.step):
                self._link.mine[0] = self.step << 2 | STOPPED
                return


@pytest.mark.parametrize("pauses", [(0.0,), (0.0, 0.0), (0.0, 0.003), (0.02, 0.0, 0.001)])
# shows: scaled up or down, or `suspend: true`, and the script calls `should_stop`
def test_all_ranks_stop_at_one_step(tmp_path: Path, pauses: tuple[float, ...]) -> None:
    server, said = serve(), threading.Event()
    steps: list[int] = []
    meet = threading.Barrier(len(pauses))
    ranks = [Rank(tmp_path / str(n), meet, pause) for n, pause in enumerate(pauses)]
    wait_for(lambda: all(rank.board.take_part() for rank in ranks), 30, "all take part")

    def stopped(step: int) -> None:
        steps.append(step)
        said.set()

    drains = [
        Drain(member(server.port, n, len(ranks)), rank.board, stopped, lambda: "")
        for n, rank in enumerate(ranks)
    ]
    for one in drains:
        one.start()
        one.start()  # the record may come twice
        time.sleep(0.05)  # not all see it at one moment
    assert said.wait(30)
    assert steps == [ranks[0].step]
    assert len({rank.step for rank in ranks}) == 1
    assert not any(rank.broken for rank in ranks)
    for one in drains:
        one.close()


# shows: a round drains, and the workers do not stop within `drainSeconds`, or the time that ...
def test_workers_go_on_where_a_member_does_not_say_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "AGREE_SECONDS", 0.5)
    server, meet = serve(), threading.Barrier(2)
    ranks = [Rank(tmp_path / str(n), meet, 0.0) for n in range(2)]
    wait_for(lambda: all(rank.board.take_part() for rank in ranks), 30, "all take part")
    one = Drain(member(server.port, 0, 2), ranks[0].board, ignore, lambda: "")
    one.start()
    wait_for(lambda: not one._thread.is_alive(), 30, "the drain has ended")
    before = ranks[0].step
    wait_for(lambda: ranks[0].step > before + 3, 30, "training goes on")
    late = Drain(member(server.port, 1, 2), ranks[1].board, ignore, lambda: "")
    late.start()
    wait_for(lambda: not late._thread.is_alive(), 30, "the other follows what was decided")
    before = ranks[1].step
    wait_for(lambda: ranks[1].step > before + 3, 30, "training goes on")
    for rank in ranks:
        rank.ends = True
    meet.abort()


class Member:
    """A member of a drain whose workers are words in memory, so that a test says what they do and when."""

    def __init__(self, folder: Path, port: int, rank: int, size: int, workers: int = 1) -> None:
        folder.mkdir()
        self.ended: set[int] = set()
        self.said: list[int] = []
        self.over = ""
        listed = [AgentWorker(n, n, 101 + n, -1) for n in range(workers)]
        board = StopBoard(str(folder), workers, None, lambda: listed, self.ended.__contains__)
        names = (f"{one.pid}.1.{one.pid}{STOP_SUFFIX}" for one in listed)
        self.words = [map_word(str(folder / name), os.O_RDWR | os.O_CREAT) for name in names]
        self.asked = board._asked
        self.drain = Drain(member(port, rank, size), board, self.said.append, lambda: self.over)

    def say(self, step: int, what: int) -> None:
        """All workers."""
        for word in self.words:
            word[0] = step << 2 | what


def members(folder: Path, size: int, workers: int = 1) -> list[Member]:
    """All of a round, at step 7; the first of them leads."""
    server = serve()
    found = [Member(folder / str(n), server.port, n, size, workers) for n in range(size)]
    found[0].__dict__["server"] = server
    for one in found:
        one.say(7, GOES_ON)
    return found


def over(*drains: Member) -> bool:
    """Whether the threads of these have ended."""
    return not any(one.drain._thread.is_alive() for one in drains)


@pytest.mark.parametrize("ends", [(2,), (0,), (0, 1)])
@pytest.mark.parametrize("when", ["before", "held", "after"])
# shows: a member ends well while the round drains, because it had fewer batches
def test_a_drain_ends_when_all_that_have_not_stopped_have_ended_well(
    tmp_path: Path, ends: tuple[int, ...], when: str
) -> None:
    """Some had fewer batches: they end with 0, before they were asked, while they are held, or on their way
    to the step. The others stop at a step that they all come to."""
    ranks = members(tmp_path, 3)

    def end() -> None:
        for n in ends:
            ranks[n].say(1000, GOES_ON)  # far ahead: nobody comes to its next step
            ranks[n].ended.add(0)

    if when == "before":
        end()
    for one in ranks:
        one.drain.start()
    if when == "held":
        wait_for(lambda: all(one.asked[0] for one in ranks), 30, "all are asked")
        end()
    wait_for(lambda: all(one.asked[0] > 0 for one in ranks), 30, "they have agreed")
    step = ranks[2 if 2 not in ends else 1].asked[0] - 1
    if when == "after":
        end()
    for n in {0, 1, 2} - set(ends):
        ranks[n].say(step, STOPPED)
    wait_for(lambda: over(*ranks), 30, "the drain has ended")
    assert ranks[0].said == [step]
    assert when != "before" or step == 8, "the step is one that those who train on come to"


def test_a_drain_says_nothing_where_all_have_ended_well(tmp_path: Path) -> None:
    """Training is complete: nothing has stopped for the change."""
    ranks = members(tmp_path, 2)
    for one in ranks:
        one.drain.start()
        one.ended.add(0)
    wait_for(lambda: over(*ranks), 30, "the drain has ended")
    assert ranks[0].said == []


def test_one_of_the_workers_of_a_torchrun_ends_well_while_the_other_stops(tmp_path: Path) -> None:
    ranks = members(tmp_path, 2, workers=2)
    for one in ranks:
        one.drain.start()
    ranks[1].ended.add(1)
    wait_for(lambda: all(one.asked[0] > 0 for one in ranks), 30, "they have agreed")
    ranks[0].say(8, STOPPED)
    ranks[1].words[0][0] = 8 << 2 | STOPPED
    wait_for(lambda: over(*ranks), 30, "the drain has ended")
    assert ranks[0].said == [8]


def test_a_step_at_which_no_worker_has_called_is_not_said_to_be_where_they_stopped(tmp_path: Path) -> None:
    """They call should_stop every hundred steps: the first step from which none has gone on is between."""
    ranks = members(tmp_path, 2)
    for one in ranks:
        one.say(100, GOES_ON)
        one.drain.start()
    wait_for(lambda: all(one.asked[0] > 0 for one in ranks), 30, "they have agreed")
    for one in ranks:
        one.say(200, STOPPED)
    wait_for(lambda: over(*ranks), 30, "the drain has ended")
    assert ranks[0].said == [200]


# shows: a round drains, and the workers of some pods do not stop, or a torchrun does not answer
def test_the_leader_says_for_whom_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First two of four torchruns do not answer. Then one worker does not come to the step."""
    monkeypatch.setattr(drain_module, "REPORT_SECONDS", 0.2)
    server = serve()
    for n in range(4):
        (tmp_path / str(n)).mkdir()
    boards = [StopBoard(str(tmp_path / str(n)), 1) for n in range(4)]
    words = [map_word(str(tmp_path / str(n) / f"0{STOP_SUFFIX}"), os.O_RDWR | os.O_CREAT) for n in range(4)]
    for word in words:
        word[0] = 7 << 2 | GOES_ON
    reported: list[tuple[int, tuple[int, ...]]] = []
    steps: list[int] = []
    drains = [
        Drain(
            *(member(server.port, n, 4), board, steps.append, lambda: ""),
            lambda step, ranks: reported.append((step, ranks)),
        )
        for n, board in enumerate(boards)
    ]
    drains[0].start()
    drains[2].start()
    wait_for(lambda: reported == [(0, (1, 3))], 30, "two do not answer")
    drains[1].start()
    drains[3].start()
    for word in (words[0], words[2], words[3]):
        word[0] = 8 << 2 | STOPPED
    wait_for(lambda: reported[-1] == (8, (1,)), 30, "one has not stopped")
    words[1][0] = 8 << 2 | STOPPED
    wait_for(lambda: steps == [8], 30, "all have stopped")
    for one in drains:
        one.close()
    assert all(later != earlier for earlier, later in pairwise(reported)), "said again only if it has changed"


def test_a_leader_alone_says_that_it_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "REPORT_SECONDS", 0.2)
    board = StopBoard(str(tmp_path), 1)
    map_word(str(tmp_path / f"0{STOP_SUFFIX}"), os.O_RDWR | os.O_CREAT)[0] = 7 << 2 | GOES_ON
    reported: list[tuple[int, tuple[int, ...]]] = []
    alone = Drain(
        member(1, 0, 1), board, ignore, lambda: "", lambda step, ranks: reported.append((step, ranks))
    )
    alone.start()
    wait_for(lambda: reported == [(8, (0,))], 30, "its own worker has not stopped")
    alone.close()


@pytest.mark.parametrize("late", [(), (0,), (4,), (1, 2), tuple(range(1, 5))])
def test_members_without_a_key_are_found(late: tuple[int, ...]) -> None:
    def there(asked: list[str]) -> bool:
        return all(int(key[3:]) not in late for key in asked)

    keys = [f"key{rank}" for rank in range(5)]
    assert missing_ranks(there, keys, 64) == list(late)
    assert missing_ranks(there, keys[1:], 1, first=1)[:1] == [rank for rank in late if rank][:1]


def test_a_drain_ends_with_its_round(tmp_path: Path) -> None:
    server, over = serve(), [""]
    folder = tmp_path / "0"
    rank = Rank(folder, threading.Barrier(1), 0.0)
    wait_for(rank.board.take_part, 30, "it takes part")
    one = Drain(member(server.port, 1, 2), rank.board, ignore, lambda: over[0])
    one.start()
    over[0] = "a member is lost"
    wait_for(lambda: not one._thread.is_alive(), 30, "the drain has ended")
    rank.ends = True
    rank.board.ask(0)
