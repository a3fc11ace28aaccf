"""``python -m tests.integration.freezing_operator``: the operator, stopped (SIGSTOP) just before a write.

``FREEZE_WHEN`` is a file; while it is there, the first write that it names stops the process, and takes the
file away. It holds method and resource (``POST pods``, ``PATCH elasticjobs/status``) and the moment:

* ``request``: before the client is asked;
* ``connection``: aiohttp has a connection and is about to hand the bytes over; our last look is next;
* ``gate``: that look is over, and the bytes are next.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from elasticjob_operator import __main__
from elasticjob_operator.observe import client

WHEN = Path(os.environ["FREEZE_WHEN"])

_writing: ContextVar[str] = ContextVar("writing", default="")
_real_request = client.Client._request
_real_body = client._GatedBody.write_with_length


def _name(method: str, path: str) -> str:
    """Method and resource; of a subresource both names."""
    parts = path.rpartition("/namespaces/")[2].split("/")[1:]
    return f"{method} {'/'.join(part for part in (parts[0], *parts[2:]))}" if parts else ""


def _freeze(moment: str) -> None:
    try:
        wanted = WHEN.read_text()
    except FileNotFoundError:
        return
    if wanted == f"{_writing.get()} {moment}":
        WHEN.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)


async def _request(self: client.Client, method: str, path: str, **rest: Any) -> Any:
    # The client of the election asks nobody.
    _writing.set(_name(method, path) if self._may_write is not None else "")
    _freeze("request")
    # Who breaks a pass off closes its connection, and the API server may notice that first. Here it does not.
    return await asyncio.shield(_real_request(self, method, path, **rest))


async def _body(self: Any, writer: Any, length: int | None) -> None:
    _freeze("connection")
    self._allowed = _then_freeze(self._allowed)
    await _real_body(self, writer, length)


def _then_freeze(allowed: Callable[[], bool]) -> Callable[[], bool]:
    def look() -> bool:
        answer = allowed()
        if answer:
            _freeze("gate")
        return answer

    return look


if __name__ == "__main__":
    client.Client._request = _request  # type: ignore[method-assign]
    client._GatedBody.write_with_length = _body  # type: ignore[method-assign,assignment]
    __main__.main()
