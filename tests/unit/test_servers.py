"""Which TCPStore servers an agent keeps, and for how long. Real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from elasticjob.store.own_servers import OwnServers


@pytest.fixture
def own() -> Iterator[OwnServers]:
    servers = OwnServers()
    yield servers
    servers.close()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_a_server_that_has_served_no_round_is_offered_again(own: OwnServers) -> None:
    port = own.offer().port
    for _ in range(3):
        assert own.offer().port == port
        assert own.enter(leads=False).port == port
        own.establish(None)
        assert listens(port)


def test_a_leader_offers_another_one_and_keeps_its_own_until_the_next_round(own: OwnServers) -> None:
    led = own.offer().port
    own.enter(leads=True)
    own.establish(None)
    offered = own.offer().port
    assert offered != led
    assert listens(led)
    own.enter(leads=False)
    assert listens(led), "members may hear of the end later than their leader"
    own.establish(None)
    assert not listens(led)
    assert listens(offered)


def test_what_served_a_round_that_failed_is_kept_until_the_next_membership_and_serves_no_other(
    own: OwnServers,
) -> None:
    own.offer()
    failed = own.enter(leads=True).port
    offered = own.offer().port
    assert offered != failed
    assert listens(failed)
    own.enter(leads=True)
    assert not listens(failed)
    assert listens(offered)


def test_nothing_is_left_at_the_end(own: OwnServers) -> None:
    ports = [own.offer().port]
    own.enter(leads=True)
    own.establish(None)
    ports.append(own.offer().port)
    own.close()
    assert not any(listens(port) for port in ports)
