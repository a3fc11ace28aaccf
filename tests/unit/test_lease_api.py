"""The Lease API's own edges, without a server."""

from __future__ import annotations

import errno

import pytest
import urllib3

from elasticjob.api.connection import Connection
from elasticjob.api.leases import HttpLeaseApi


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
