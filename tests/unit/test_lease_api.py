"""The Lease API's own edges, without a server."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest
import urllib3

from elasticjob.api.connection import Connection
from elasticjob.api.errors import Unavailable
from elasticjob.api.leases import MAX_RETRY_AFTER_SECONDS, HttpLeaseApi, Lease
from elasticjob.leases.writer import LeaseWriter
from tests.unit.memory_api import Leases, MemoryApi


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EBADF, "Bad file descriptor"),
        ValueError("Cannot shutdown socket as self._sock_shutdown is not set"),
        RuntimeError("Cannot shutdown as connection has already been released to the pool"),
    ],
)
def test_stop_at_the_moment_when_the_watch_ends_by_itself(error: Exception) -> None:
    """The last record of a job does that. An error here would be the exit code of a good agent."""

    class Ending(urllib3.HTTPResponse):
        def shutdown(self) -> None:
            raise error

    api = HttpLeaseApi(Connection("https://nowhere", urllib3.PoolManager(), dict), "default")
    api._watch = Ending()
    api.stop()


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("7", 7.0),
        ("", 0.0),
        ("99999999999", MAX_RETRY_AFTER_SECONDS),
        ("-5", 0.0),
        ("nan", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
    ],
)
def test_a_proxy_may_ask_for_any_pause(asked: str, seconds: float) -> None:
    """HTTP allows a date, and a load balancer in maintenance an hour."""

    class Pool(urllib3.PoolManager):
        def request(self, *_: Any, **__: Any) -> urllib3.BaseHTTPResponse:
            return urllib3.HTTPResponse(b"busy", headers={"retry-after": asked}, status=503)

    api = HttpLeaseApi(Connection("https://nowhere", Pool(), dict), "default")
    with pytest.raises(Unavailable) as raised:
        api.read("job-round")
    assert raised.value.retry_after == seconds


def test_the_writer_outlives_an_answer_that_nobody_expects() -> None:
    """What it writes afterwards arrives, and what was said meanwhile is in it."""
    asked = threading.Event()

    class Odd(MemoryApi):
        def take_over(self, name: str, lease: Any) -> Lease:
            if not asked.is_set():
                asked.set()
                raise AttributeError("'list' object has no attribute 'get'")
            return super().take_over(name, lease)

    leases = Leases()
    writer = LeaseWriter(Odd(leases), "pod", "uid", {})
    try:
        writer.write(participant="said")
        assert writer.flush(60)
        assert asked.is_set()
        assert leases.annotation("pod", "elasticjob.dev/participant") == "said"
        assert not writer.last_error
    finally:
        writer.stop()
