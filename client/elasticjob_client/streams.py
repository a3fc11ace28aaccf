"""Answers that go on for hours: that a dead connection is noticed, and that another thread can end them."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import httpx2

_KEEP_ALIVE = (
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 30),
    ("IPPROTO_TCP", "TCP_KEEPALIVE", 30),  # what macOS calls the one above
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 10),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 3),
)
"""A connection that was silent for 30 seconds is tried, and is dead after three tries without an answer."""

_NOT_POSSIBLE = (OSError, TypeError)
"""Errors of a socket that is closed, is no TCP, or that an event loop does not give away."""


def lasting(request: httpx2.Request, response: httpx2.Response, silent: float | None) -> None:
    """Let the answer be silent for so long, as long as its connection lives."""
    request.extensions["timeout"]["read"] = silent
    if (found := _socket(response)) is not None:
        for level, name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                with contextlib.suppress(*_NOT_POSSIBLE):
                    found.setsockopt(getattr(socket, level), getattr(socket, name), value)


def interrupt(response: httpx2.Response) -> None:
    """End an answer that another thread or task waits for."""
    found = _socket(response)
    if found is not None:
        end = socket.socket.shutdown if isinstance(found, socket.socket) else type(found).shutdown
        with contextlib.suppress(*_NOT_POSSIBLE):
            end(found, socket.SHUT_RDWR)  # of a TLS socket too: without its farewell


def _socket(response: httpx2.Response) -> Any:
    """A socket, or what asyncio gives instead of it."""
    stream = response.extensions.get("network_stream")
    return stream.get_extra_info("socket") if stream is not None else None
