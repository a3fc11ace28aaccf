"""A Lease satisfies the contract of torch's ``RendezvousBackend``: its resourceVersion is the fencing token.

The mode without an operator does not use it (docs/internals/peers.md says why). The bodies are those of
torch's own suite, ``test/distributed/elastic/rendezvous/rendezvous_backend_test.py``.
"""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

from devcluster.access import ClusterAccess
from elasticjob.api.connection import connect
from elasticjob.api.errors import ApiError, Conflict, NotFound
from elasticjob.api.leases import Lease
from elasticjob.api.listing import HttpListApi

pytestmark = pytest.mark.cluster

STATE = "elasticjob.dev/torch-state"
NAME = "torch"


class LeaseBackend(RendezvousBackend):
    """The state of a rendezvous in an annotation of one Lease."""

    def __init__(self, api: HttpListApi) -> None:
        self._api = api

    @property
    def name(self) -> str:
        return "lease"

    def get_state(self) -> tuple[bytes, Any] | None:
        try:
            return _read(self._api.read(NAME))
        except NotFound:
            return None
        except ApiError as error:
            raise RendezvousConnectionError(str(error)) from error

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        annotations = {STATE: base64.b64encode(state).decode()}
        try:
            if token is None:
                body = {"metadata": {"name": NAME, "annotations": annotations}}
                lease = self._api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body})
            else:
                metadata = {"resourceVersion": str(token), "annotations": annotations}
                lease = self._api.patch(NAME, {"metadata": metadata})
        except (Conflict, NotFound):
            found = self.get_state()
            return None if found is None else (*found, False)
        except ApiError as error:
            if error.status in (0, 401, 403):  # others: a token that is no resourceVersion matches none
                raise RendezvousConnectionError(str(error)) from error
            found = self.get_state()
            return None if found is None else (*found, False)
        return (*_read(lease), True)


def _read(lease: Lease) -> tuple[bytes, str]:
    try:
        return base64.b64decode(lease.annotations[STATE], validate=True), lease.resource_version
    except (KeyError, ValueError) as error:
        raise RendezvousStateError(f"Lease {NAME} has no state that can be read") from error


@pytest.fixture
def backend(cluster: ClusterAccess, namespace: str) -> LeaseBackend:
    """Without a state."""
    return LeaseBackend(HttpListApi(connect(str(cluster.kubeconfig)), namespace))


def put(backend: LeaseBackend, state: bytes, token: Any = None) -> tuple[bytes, Any, bool]:
    found = backend.set_state(state, token)
    assert found is not None
    return found


def test_get_state_returns_the_state(backend: LeaseBackend) -> None:
    put(backend, b"x")
    found = backend.get_state()
    assert found is not None
    assert found[0] == b"x"
    assert found[1] is not None
    assert backend.get_state() == found, "the same token while it has not changed"


def test_get_state_returns_none_if_there_is_none(backend: LeaseBackend) -> None:
    assert backend.get_state() is None


def test_set_state_sets_the_state_if_there_is_none(backend: LeaseBackend) -> None:
    state, token, done = put(backend, b"x")
    assert (state, done) == (b"x", True)
    assert backend.get_state() == (b"x", token)


def test_set_state_sets_the_state_if_the_token_is_that_of_the_last(backend: LeaseBackend) -> None:
    _, first, _ = put(backend, b"x")
    state, second, done = put(backend, b"y", first)
    assert (state, done) == (b"y", True)
    assert second != first
    assert backend.get_state() == (b"y", second)


@pytest.mark.parametrize("token", [None, "stale"])
def test_set_state_returns_the_existing_state_otherwise(backend: LeaseBackend, token: str | None) -> None:
    _, first, _ = put(backend, b"x")
    _, second, _ = put(backend, b"y", first)
    assert put(backend, b"z", first if token else None) == (b"y", second, False)
    assert backend.get_state() == (b"y", second)


@pytest.mark.parametrize("token", ["invalid", "0", "9" * 30])
def test_set_state_does_not_set_it_with_a_token_that_never_was(backend: LeaseBackend, token: str) -> None:
    assert backend.set_state(b"x", token) is None
    put(backend, b"x")
    state, _, done = put(backend, b"y", token)
    assert (state, done) == (b"x", False)


def test_of_several_that_set_it_at_once_one_succeeds(backend: LeaseBackend) -> None:
    _, token, _ = put(backend, b"x")
    results: list[tuple[bytes, Any, bool]] = []
    threads = [
        threading.Thread(target=lambda value=value: results.append(put(backend, value, token)))
        for value in (b"a", b"b", b"c", b"d")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done for _, _, done in results) == [False, False, False, True]
    assert len({(state, token) for state, token, _ in results}) == 1


def test_a_state_that_cannot_be_read_is_an_error(
    backend: LeaseBackend, cluster: ClusterAccess, namespace: str
) -> None:
    put(backend, b"x")
    cluster.kubectl("-n", namespace, "annotate", "lease", NAME, f"{STATE}=?", "--overwrite")
    with pytest.raises(RendezvousStateError):
        backend.get_state()
