"""Some histories of runs without operator; ``python -m tests.peers`` plays any number."""

from __future__ import annotations

import pytest

from elasticjob.peers import forming, seat
from elasticjob.peers.election import Claim, Standing, next_claim
from tests.peers.__main__ import check
from tests.peers.history import play


@pytest.mark.parametrize("seed", range(40))
def test_no_rule_is_broken(seed: int) -> None:
    play(seed)


def broken(seeds: range) -> set[str]:
    """The rules that these histories break."""
    return {rule for seed in seeds if (rule := check(seed)[0])}


def test_without_proof_two_rounds_train_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: the oracle sees it when a round is published without it."""
    monkeypatch.setattr(forming, "has_left", lambda _member, _sight: True)
    assert "P3" in broken(range(400))


def test_without_patience_a_dead_coordinator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: as if a participant took over only where the coordinator has left by itself."""

    def claim(standing: Standing) -> Claim:
        found = next_claim(standing)
        return found if not standing.held else Claim(float("inf"), "")

    monkeypatch.setattr(seat, "next_claim", claim)
    assert broken(range(40)) & {"P5", "I6"}
