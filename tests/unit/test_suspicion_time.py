"""When a silent peer is probed: at the time of the suspicion, not with the next heartbeat. The clock of the
threads is played, and what has come in; the probe is real."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.core.heartbeats import Loss, ProbeResult
from elasticjob.core.participant import Membership
from elasticjob.watch import heartbeats, post_round_probe
from elasticjob.watch.heartbeats import Answer, Heartbeats
from elasticjob.watch.post_round_probe import PostRoundProbe
from elasticjob.watch.step_files import StepReader
from tests.unit.listening import Listening


class Clock:
    """Stands for ``time`` and for the event that ends a thread: its waits pass at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lost: list[tuple[float, set[int]]] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        """Each wait lasts a little longer than was asked for."""
        self.now += seconds + 0.001
        return self.now > 8.0

    def is_set(self) -> bool:
        return False

    def hear(self, found: Mapping[int, Loss]) -> None:
        assert {loss.probe for loss in found.values()} == {ProbeResult.REFUSED}
        self.lost.append((round(self.now, 1), set(found)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    played = Clock()
    for module in (heartbeats, post_round_probe):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=played.monotonic))
    return played


@pytest.fixture
def refusing() -> str:
    """A port without a listener."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_leader_is_probed_between_two_heartbeats(
    clock: Clock, refusing: str, tmp_path: Path
) -> None:
    membership = Membership("uid", 1, "n", "id", 1, 2, refusing, Limits())
    thread = Heartbeats(membership, StepReader(str(tmp_path)), Listening(lost=clock.hear))
    patched = cast(SimpleNamespace, thread)
    patched._stop = clock
    patched._exchange = lambda: Answer({0: min(int(clock.now), 2)})
    run = cast("Callable[[], None]", patched._run)
    run()
    assert clock.lost == [(4.5, {0})], "2.5 s after the answer at 2 s"


def test_a_member_that_is_gone_is_probed_as_soon_after_its_round(clock: Clock, refusing: str) -> None:
    thread = PostRoundProbe({1: refusing}, Limits(), clock.hear)
    patched = cast(SimpleNamespace, thread)
    patched._stop = clock
    run = cast("Callable[[], None]", patched._run)
    run()
    assert clock.lost == [(2.5, {1})]
