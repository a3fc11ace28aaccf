"""After a round: a member that no longer answers is found, one that is only busy is not. Real sockets."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.core.heartbeats import Loss, ProbeResult
from elasticjob.watch.post_round_probe import PostRoundProbe

DEADLINE = 90.0


@pytest.fixture
def busy() -> Iterator[str]:
    """A port that accepts connections and says nothing: an agent that stops its workers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=128)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> str:
    """A port without a listener."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_who_is_gone_is_named_once_and_who_is_busy_never(busy: str) -> None:
    found: queue.Queue[Mapping[int, Loss]] = queue.Queue()
    post_round_probe = PostRoundProbe({1: busy, 2: closed_port(), 3: closed_port()}, Limits(), found.put)
    post_round_probe.start()
    try:
        lost = found.get(timeout=DEADLINE)
        assert set(lost) == {2, 3}
        assert {loss.probe for loss in lost.values()} == {ProbeResult.REFUSED}
        assert all(2.5 < loss.silent_seconds < DEADLINE for loss in lost.values())
        with pytest.raises(queue.Empty):
            found.get(timeout=3.0)
    finally:
        post_round_probe.stop()


@pytest.fixture
def deaf() -> Iterator[str]:
    """A port whose machine drops every further connection: its queue is full, and nothing accepts."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server, ExitStack() as callers:
        for _ in range(4):
            client = callers.enter_context(closing(socket.socket()))
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_machine_that_does_not_answer_is_borne_for_the_heartbeat_timeout(deaf: str) -> None:
    found: queue.Queue[Mapping[int, Loss]] = queue.Queue()
    post_round_probe = PostRoundProbe({0: deaf}, Limits(heartbeat_timeout=4), found.put)
    post_round_probe.start()
    try:
        (loss,) = found.get(timeout=DEADLINE).values()
        assert loss.probe is ProbeResult.SILENT
        assert loss.silent_seconds >= 4.0
    finally:
        post_round_probe.stop()


def test_nothing_is_said_when_it_was_stopped() -> None:
    found: queue.Queue[Mapping[int, Loss]] = queue.Queue()
    post_round_probe = PostRoundProbe({1: closed_port()}, Limits(), found.put)
    post_round_probe.start()
    post_round_probe.stop()
    with pytest.raises(queue.Empty):
        found.get(timeout=4.0)


def test_nobody_to_look_for_needs_no_thread() -> None:
    post_round_probe = PostRoundProbe({}, Limits(), lambda lost: pytest.fail(f"{lost}"))
    post_round_probe.start()
    post_round_probe.stop()
