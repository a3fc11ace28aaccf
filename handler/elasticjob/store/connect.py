"""Opens a connection to a store, and breaks one from outside."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from datetime import timedelta

from torch.distributed import DistNetworkError, TCPStore

from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.core.heartbeats import ProbeResult
from elasticjob.store.errors import CannotConnect, Unreachable
from elasticjob.store.probe import probe
from elasticjob.store.server import use_libuv

CONNECT_SECONDS = 5.0


def connect(endpoint: str) -> TCPStore:
    """A client of the server at an endpoint. Raises Unreachable, or CannotConnect if the fault is local.

    A plain connection is tried first: TCPStore itself would retry for minutes, and print to stderr. torch
    calls what comes from the network, time limits too, a DistNetworkError, from 2.4 on.
    """
    host, port = parse_endpoint(endpoint)
    found = probe({0: endpoint}, CONNECT_SECONDS).get(0)
    if found is None:
        raise CannotConnect("this process cannot open more connections", passing=True)
    if found is not ProbeResult.ACCEPTED:
        raise Unreachable(f"{endpoint}: {_unresolved(host) or found.value}")
    try:
        return TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=60),
            use_libuv=use_libuv(),
        )
    except (DistNetworkError, OSError) as error:
        raise Unreachable(f"{endpoint}: {error}") from None
    except Exception as error:  # noqa: BLE001 - a local fault, not the peer's
        raise CannotConnect(f"{type(error).__name__}: {error}") from None


def _unresolved(host: str) -> str:
    """Why the name cannot be resolved; "" if it can."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        return f"the name {host} cannot be resolved ({getattr(error, 'strerror', error)})"
    return ""


def disconnect(endpoint: str) -> None:
    """Break this process's connections to a server: a thread in a call of it in C++ gets an error.

    Otherwise a wait without an answer holds its thread and descriptors until the server goes. Only on Linux;
    elsewhere they stay until then, as does a thread that still waits for the hello of a frozen server.
    """
    host, port = parse_endpoint(endpoint)
    try:
        hosts = {address[0] for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except (OSError, ValueError):
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            # A copy: the number may mean another file at any moment.
            copy = os.dup(number)
            try:
                _shut_down(copy, hosts, port)
            finally:
                os.close(copy)


def _shut_down(file: int, hosts: set[str | int], port: int) -> None:
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return
    one = socket.socket(fileno=file)
    try:
        peer = one.getpeername()
        if isinstance(peer, tuple) and peer[1] == port and peer[0].removeprefix("::ffff:") in hosts:
            one.shutdown(socket.SHUT_RDWR)
    finally:
        one.detach()
