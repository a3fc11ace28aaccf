"""``python -m tests.kueue.losing_operator``: the operator, whose writes of Workloads get lost.

Of them each ``NTH`` fails: in turns it is not sent, or is carried out and its answer does not come back.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

from elasticjob_operator import __main__
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.errors import TookTooLong, Unavailable

NTH = 3
LOST = "lost its answer"
NOT_SENT = "was not sent"

_real_request = Client._request
_writes = itertools.count(1)

log = logging.getLogger("elasticjob.operator")


async def _request(self: Client, method: str, path: str, **rest: Any) -> Any:
    number = next(_writes) if method != "GET" and "/workloads" in path else 1
    if number % NTH:
        return await _real_request(self, method, path, **rest)
    name = f"{method} {path}"
    if number // NTH % 2:
        await _real_request(self, method, path, **rest)
        log.warning("%s %s", name, LOST)
        raise TookTooLong(name, 0, "TimeoutError", "time limit")
    log.warning("%s %s", name, NOT_SENT)
    raise Unavailable(name, 0, "ClientOSError", "connection reset by peer")


if __name__ == "__main__":
    Client._request = _request  # type: ignore[method-assign]
    __main__.main()
