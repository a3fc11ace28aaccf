"""Whether ports accept connections: what others announce as endpoints, and what the resolver makes of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from elasticjob.core.heartbeats import ProbeResult
from elasticjob.store import probe as module
from elasticjob.store.connect import connect, disconnect
from elasticjob.store.errors import Unreachable
from elasticjob.store.probe import probe

LONG = f"{'a' * 64}:80"
"""An endpoint for a record; Python's ``idna`` refuses it."""


@pytest.fixture
def port() -> Iterator[int]:
    """One that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """One that refuses them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: int = server.getsockname()[1]
    return found


@pytest.mark.parametrize("odd", [LONG, "a..b:80", "no endpoint", "", "[::1"])
def test_an_endpoint_that_is_none_holds_up_no_other(odd: str, port: int, closed: int) -> None:
    found = probe({0: odd, 1: f"127.0.0.1:{port}", 2: f"127.0.0.1:{closed}", 3: f"localhost:{port}"}, 20.0)
    assert found == {
        0: ProbeResult.SILENT,
        1: ProbeResult.ACCEPTED,
        2: ProbeResult.REFUSED,
        3: ProbeResult.ACCEPTED,
    }


def test_a_leader_whose_name_the_resolver_refuses_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="cannot be resolved"):
        connect(LONG)
    disconnect(LONG)


def test_a_name_that_resolves_slowly_holds_up_no_other(
    port: int, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, real = threading.Event(), socket.getaddrinfo

    def resolve(host: str, port: int, type: int, flags: int = 0) -> Any:
        if host == "slow" and not flags:
            assert free.wait(60)
        named = host in ("slow", "other") and not flags
        return real("127.0.0.1" if named else host, port, type=type, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(module, "_begin", begin := Begin(free))
    others = {1: f"127.0.0.1:{closed}", 2: f"other:{port}"}
    assert probe({0: f"slow:{port}", **others}, 60.0) == {
        0: ProbeResult.ACCEPTED,
        1: ProbeResult.REFUSED,
        2: ProbeResult.ACCEPTED,
    }
    assert begin.ranks == [1, 2, 0]
    free.clear()
    assert probe({0: f"slow:{port}"}, 0.1) == {0: ProbeResult.SILENT}
    free.set()


class Begin:
    """``_begin``, which lets the slow one go on once both others have begun."""

    def __init__(self, free: threading.Event) -> None:
        self._free, self._real = free, module._begin
        self._thread = threading.get_ident()
        self.ranks: list[int] = []

    def __call__(self, rank: int, *rest: Any) -> None:
        self._real(rank, *rest)
        if threading.get_ident() != self._thread:
            return  # other tests may have left threads that probe
        self.ranks.append(rank)
        if {1, 2} <= set(self.ranks):
            self._free.set()
