"""Which processes a round's workers have left behind, and above all which not: the decision alone."""

from __future__ import annotations

import pytest

from elasticjob.workers.leftovers import _named, left_behind
from elasticjob.workers.processes import Process, parse
from elasticjob.workers.torch_agent import AgentWorker

AGENT = Process(10, 1, 10, 10, 100, "S", "torchrun")
UPLOADER = Process(9, 10, 9, 9, 90, "S", "uploader")
"""A child of torchrun's process that is no worker: ``setsid uploader & exec torchrun``."""
WORKER = AgentWorker(0, 0, 20, 200)


def process(pid: int, parent: int, session: int, born: int = 300, state: str = "S") -> Process:
    return Process(pid, parent, session, session, born, state, f"p{pid}")


def found(
    *others: Process,
    descended: set[tuple[int, int]] | None = None,
    spared: tuple[int, ...] = (),
    worker: AgentWorker = WORKER,
) -> list[int]:
    seen = {one.pid: one for one in (AGENT, UPLOADER, *others)}
    return [one.pid for one in left_behind(seen, [worker], descended or set(), {10, 1, *spared})]


def test_what_is_in_the_session_of_a_worker_that_has_ended() -> None:
    assert found(process(21, 1, 20), process(22, 10, 20), process(23, 21, 20)) == [21, 22, 23]
    assert found(Process(24, 1, 20, 10, 300, "S")) == [24], "or in its process group"


def test_what_was_seen_below_it_whatever_its_session() -> None:
    assert found(process(30, 10, 30), descended={(30, 300)}) == [30]
    assert found(process(30, 10, 30, born=999), descended={(30, 300)}) == [], "another has its number"


def test_what_descends_from_what_was_left_behind() -> None:
    assert found(process(30, 1, 30), process(31, 30, 31), process(32, 1, 30), descended={(30, 300)}) == [
        30,
        31,
        32,
    ]


def test_what_is_no_workers_descendant_is_left_alone() -> None:
    assert found(process(40, 9, 9), process(41, 10, 41), process(42, 1, 42)) == []


def test_a_worker_that_still_runs_has_left_nothing_behind() -> None:
    running = Process(20, 10, 20, 20, 200, "S", "python")
    assert found(running, process(21, 20, 20)) == []
    assert found(Process(20, 10, 20, 20, 200, "Z", "python"), process(21, 20, 20)) == [21]


@pytest.mark.parametrize("born", [200, -1])
def test_another_process_may_have_the_number_of_a_worker_by_now(born: int) -> None:
    """Such as a shell of ``kubectl exec``, and what was started there."""
    worker = AgentWorker(0, 0, 20, born)
    shell, below = process(20, 0, 20, born=900), Process(21, 20, 21, 20, 901, "S")
    assert found(shell, below, worker=worker) == []
    assert found(process(20, 0, 20, born=900, state="Z"), below, worker=worker) == []
    assert found(below, worker=worker) == [21], "nothing has the number now"
    assert found(shell, below, descended={(20, 900)}, worker=worker) == [20, 21], "it was left behind itself"


def test_those_that_wait_to_become_workers_are_spared_with_what_they_start() -> None:
    assert found(process(50, 10, 50), process(51, 50, 51), descended={(50, 300)}, spared=(50,)) == []


def test_the_dead_are_not_named() -> None:
    assert found(process(21, 1, 20, state="Z")) == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("é" * 8, "é" * 7 + "\N{REPLACEMENT CHARACTER}"),
        ("a) S (b", "a) S (b"),
        ("\x1b]0;title\x07", "]0;title"),
    ],
)
def test_a_process_may_call_itself_anything(name: str, shown: str) -> None:
    """The kernel cuts names after 15 bytes, in the middle of a letter."""
    stat = b"7 (" + name.encode()[:15] + b") S 1 2 3 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"
    one = parse(7, stat)
    assert one is not None
    assert (one.parent, one.group, one.session, one.born, one.state) == (1, 2, 3, 4711, "S")
    assert _named([one]) == f"7 ({shown})"
