"""Ports that refuse connections: when that is the proof that an agent has ended."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from elasticjob.coordination import ports
from elasticjob.core.heartbeats import ProbeResult
from elasticjob.peers.sight import Sight
from tests.unit.peers.table import Table


def probed(monkeypatch: pytest.MonkeyPatch, *answers: ProbeResult) -> tuple[ports.Ports, Sight]:
    """The port of one participant was tried, with these answers in turn."""
    table, left = Table(), list(answers)
    table.join("pod-0")
    peer = table.peers["pod-0"]

    def probe(endpoints: Mapping[int, str], seconds: float) -> dict[int, ProbeResult]:
        del seconds
        return dict.fromkeys(endpoints, left.pop(0))

    monkeypatch.setattr(ports, "probe", probe)
    monkeypatch.setattr(ports, "AGAIN_SECONDS", 0.0)
    heard = threading.Event()
    tried = ports.Ports(heard.set)
    tried._try({peer.key: peer.record.endpoint})
    assert not left
    return tried, Sight(table.peers, datetime(2026, 1, 1, tzinfo=timezone.utc), "nonce")


def silent(sight: Sight, seconds: float) -> Sight:
    return replace(sight, peers={name: replace(p, silent=seconds) for name, p in sight.peers.items()})


def test_one_refusal_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    for second in (ProbeResult.SILENT, ProbeResult.REFUSED):
        tried, sight = probed(monkeypatch, ProbeResult.REFUSED, second)
        (peer,) = sight.peers.values()
        _, at = tried._refused.get(peer.key, ("", 0.0))
        assert bool(tried.refused(silent(sight, 5.0), at + 1.0)) == (second is ProbeResult.REFUSED)


def test_one_whose_lease_changes_after_the_refusal_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, sight = probed(monkeypatch, ProbeResult.REFUSED, ProbeResult.REFUSED)
    (peer,) = sight.peers.values()
    _, at = tried._refused[peer.key]
    assert tried.refused(silent(sight, 10.0), at + 10.0)
    assert not tried.refused(silent(sight, 9.0), at + 10.0)
