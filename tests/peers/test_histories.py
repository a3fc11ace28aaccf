"""Some histories of runs without operator; ``python -m tests.peers`` plays any number."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.peers import seat
from elasticjob.peers.election import NEVER, Claim, Standing, next_claim
from tests.peers.__main__ import check
from tests.peers.api import Api, Stored
from tests.peers.history import play


@pytest.mark.parametrize("seed", range(20))
def test_no_rule_is_broken(seed: int) -> None:
    play(seed)


FOUND = {
    112: "two that could not reach each other took the place of coordinator from each other for ever",
    140: "one whose Lease was deleted by hand was waited for although it had announced itself again",
    415: "a Lease that a user deleted was the proof that its pod had ended, although the pod was seen",
    1810: "a watch that hung was the proof that a leader had not reported its round established",
    934: "a round Lease of which half could be read was begun again below its number",
}


@pytest.mark.parametrize("seed", FOUND, ids=str)
def test_what_was_found_once(seed: int) -> None:
    play(seed)


def test_without_its_precondition_a_write_sets_the_record_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: the oracle sees it."""
    patch = Api.patch

    def careless(api: Api, name: str, version: str, **fields: Any) -> Stored:
        del version
        return patch(api, name, "", **fields)

    monkeypatch.setattr(Api, "patch", careless)
    assert "P2" in {check(seed)[0] for seed in range(100, 110)}


def test_without_patience_a_dead_coordinator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: as if a participant took over only where the coordinator has left by itself."""

    def claim(standing: Standing) -> Claim:
        return Claim(NEVER, "") if standing.held else next_claim(standing)

    monkeypatch.setattr(seat, "next_claim", claim)
    assert "P5" in {check(seed)[0] for seed in range(2, 4)}
