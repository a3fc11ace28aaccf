"""The round kernel serves a caller that has no pods, no Leases and no operator."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elasticjob.rounds import reports
from tests.simulation.peers import Peers, play


def test_all_train_in_the_end_and_no_announcement_is_used_twice() -> None:
    for seed in range(60):
        peers = play(seed)
        assert len(peers.in_round()) == peers.count, f"seed {seed}: {peers.board.state}"
        history = peers.board.history
        assert [r.number for r in history] == list(range(1, len(history) + 1))
        ids = [m.id for r in history for m in r.members]
        assert len(ids) == len(set(ids)), f"seed {seed}"
        assert min(len(r.members) for r in history) >= peers.minimum


def test_survivors_keep_their_ranks_and_a_new_process_takes_the_lost_one() -> None:
    peers = Peers(1, 4, 4)
    peers.kernel.run(20.0)
    before = {m.name: m.group_rank for m in peers.board.state.members}
    lost = next(name for name, rank in before.items() if rank == 0)
    peers.kill(lost)
    peers.kernel.run(5.0)
    peers.start(lost)
    peers.kernel.run(30.0)
    assert peers.board.state.number == 2
    assert {m.name: m.group_rank for m in peers.board.state.members} == before
    assert len(peers.in_round()) == 4


def one_stands_still(rank: int) -> tuple[Peers, str]:
    """Four have trained for a while; then the one with this rank stands still for long enough."""
    peers = Peers(1, 4, 2)
    peers.kernel.run(20.0)
    name = peers.board.state.members[rank].name
    peers.processes[name].freeze()
    peers.kernel.run(40.0)
    return peers, name


def test_a_process_that_stands_still_is_reported_and_the_others_go_on_without_it() -> None:
    peers, slow = one_stands_still(2)
    assert peers.board.ends == ["Unreachable"]
    assert slow not in peers.in_round()
    assert len(peers.in_round()) == 3


def test_a_leader_that_stands_still_is_not_believed_and_does_not_lead_again() -> None:
    peers, leader = one_stands_still(0)
    assert peers.board.ends == ["LeaderUnreachable"]
    assert len(peers.in_round()) == 3
    assert peers.board.state.members[0].name != leader


@pytest.mark.parametrize(("rule", "rank"), [("_accusations", 0), ("_reported_by_leader", 2)])
def test_nobody_else_ends_the_round_of_who_stands_still(
    rule: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rule: what the tests above see is the kernel's doing."""
    monkeypatch.setattr(reports, rule, lambda _: [])
    peers, _ = one_stands_still(rank)
    assert peers.board.ends == []


def test_the_kernel_needs_the_standard_library_only() -> None:
    code = (
        "import sys, pkgutil, importlib, elasticjob.rounds as rounds\n"
        "for module in pkgutil.iter_modules(rounds.__path__):\n"
        "    importlib.import_module('elasticjob.rounds.' + module.name)\n"
        "others = ('cattrs', 'attrs', 're2', 'urllib3', 'kopf', 'elasticjob_operator')\n"
        "print([name for name in others if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
