"""``python -m tests.integration.freezing_operator``: the operator, stopped (SIGSTOP) just before a write.

``FREEZE_BEFORE``: method and resource of the write, such as ``POST pods`` or ``PATCH elasticjobs/status``.
``FREEZE_WHEN``: a file; while it is there, the first such write stops the process, and takes the file away.
``FREEZE_AT``: ``request``, before the client is asked, or ``connection``, when aiohttp has a connection and
is about to hand the bytes over, the last moment before the client's own last look.
"""

from __future__ import annotations

import os
import signal
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from elasticjob_operator import __main__
from elasticjob_operator.observe import client

BEFORE = os.environ["FREEZE_BEFORE"]
WHEN = Path(os.environ["FREEZE_WHEN"])
AT = os.environ["FREEZE_AT"]

_writing: ContextVar[str] = ContextVar("writing", default="")
_real_request = client.Client._request
_real_body = client._GatedBody.write_with_length


def _name(method: str, path: str) -> str:
    """Method and resource; of a subresource both names."""
    parts = path.rpartition("/namespaces/")[2].split("/")[1:]
    return f"{method} {'/'.join(part for part in (parts[0], *parts[2:]))}" if parts else ""


def _freeze() -> None:
    if WHEN.exists():
        WHEN.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)


async def _request(self: client.Client, method: str, path: str, **rest: Any) -> Any:
    name = _name(method, path)
    _writing.set(name)
    if AT == "request" and name == BEFORE and self._may_write is not None:
        _freeze()
    return await _real_request(self, method, path, **rest)


async def _body(self: Any, writer: Any, length: int | None) -> None:
    if AT == "connection" and _writing.get() == BEFORE:
        _freeze()
    await _real_body(self, writer, length)


if __name__ == "__main__":
    client.Client._request = _request  # type: ignore[method-assign]
    client._GatedBody.write_with_length = _body  # type: ignore[method-assign,assignment]
    __main__.main()
