"""The end of a round's store: the exit barrier against a job that is Complete already. Real TCPStores."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore

from elasticjob.store.connection import StoreConnection
from elasticjob.store.errors import StoreGone
from elasticjob.store.round_store import EXIT_BARRIER, RoundStore
from elasticjob.store.server import serve

KEY = f"{EXIT_BARRIER}/last_member"


@pytest.fixture
def server() -> TCPStore:
    return serve()


@pytest.fixture
def connection(server: TCPStore) -> Iterator[StoreConnection]:
    made = StoreConnection(lambda: server, "round", threading.Condition())
    yield made
    made.close()


def leaders(connection: StoreConnection) -> RoundStore:
    """The leader's store of a round of one, whose job is known to be Complete."""
    return RoundStore(connection, True, 0, 1, lambda: "", lambda: None, lambda: True)


def test_a_call_on_a_closed_connection_is_answered(connection: StoreConnection) -> None:
    connection.close()
    with pytest.raises(StoreGone, match="closed"):
        connection.call(lambda store: store.add("x", 0), lambda: "")


def test_the_exit_barrier_is_passed_though_the_job_is_complete_already(
    connection: StoreConnection, server: TCPStore
) -> None:
    """The operator may be quicker than the barrier: there is no hurry, and the leader can still count."""
    store = leaders(connection)
    last = StoreConnection(lambda: server, "round", threading.Condition())
    arrival = threading.Timer(0.5, last.submit, [lambda store: store.set(KEY, "1")])
    arrival.start()
    store.wait([KEY])
    last.close()
    assert store.passed
    assert store.all_passed(), "the connection is still there: the leader lingers for as long as it must"


def test_a_barrier_that_never_passes_holds_nobody_in_a_complete_job(connection: StoreConnection) -> None:
    store = leaders(connection)
    store.wait([KEY])
    assert store.passed
    with pytest.raises(StoreGone):
        store.all_passed()
