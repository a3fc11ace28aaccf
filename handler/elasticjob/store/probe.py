"""Whether ports accept connections, many at once."""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.core.heartbeats import ProbeResult

logger = logging.getLogger(__name__)


LOCAL_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
"""Errors of this process or its machine; no peer is to blame."""


MAX_LOOK_UPS = 16
"""How many names are resolved at once."""
LOOK_SECONDS = 0.02
"""How often it is looked whether names have been resolved."""
_Address = tuple[int, int, int, Any]
"""Family, kind, protocol and address of a socket."""


def probe(endpoints: Mapping[int, str], seconds: float) -> dict[int, ProbeResult]:
    """Try to connect to all these ports at once, for this many seconds. Never raises: a port that could not
    be tried, if descriptors are short for example, is not in the answer."""
    result: dict[int, ProbeResult] = dict.fromkeys(endpoints, ProbeResult.SILENT)
    try:
        _probe(endpoints, time.monotonic() + seconds, result)
    except (OSError, RuntimeError) as error:  # RuntimeError: threads are short
        logger.debug("cannot probe ports: %s", error)
        return {}
    return result


def _probe(endpoints: Mapping[int, str], deadline: float, result: dict[int, ProbeResult]) -> None:
    with selectors.DefaultSelector() as selector:
        try:
            names = {}
            for rank, endpoint in endpoints.items():
                found = _resolve(endpoint, socket.AI_NUMERICHOST)
                if isinstance(found, socket.gaierror):
                    names[rank] = endpoint
                else:
                    _begin(rank, found, selector, result)
            answers = _look_up(names, deadline)
            while (names or selector.get_map()) and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, LOOK_SECONDS) if names else left):
                    assert isinstance(key.fileobj, socket.socket)
                    code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    result[key.data] = _probe_result(code)
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                while not answers.empty():
                    rank, found = answers.get()
                    del names[rank]
                    _begin(rank, found, selector, result)
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def _resolve(endpoint: str, flags: int = 0) -> _Address | Exception:
    """Any text: others announce their endpoints. The resolver has its own ideas of what a name is."""
    try:
        host, port = parse_endpoint(endpoint)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, ValueError) as error:
        return error
    family, kind, protocol, _, address = found[0]
    return family, kind, protocol, address


def _look_up(names: Mapping[int, str], deadline: float) -> SimpleQueue[tuple[int, _Address | Exception]]:
    """Resolve these in threads: one that takes long, which cannot be ended, holds up no other."""
    answers: SimpleQueue[tuple[int, _Address | Exception]] = SimpleQueue()
    todo: SimpleQueue[tuple[int, str]] = SimpleQueue()
    for item in names.items():
        todo.put(item)

    def work() -> None:
        with contextlib.suppress(Empty):
            while time.monotonic() < deadline:
                rank, endpoint = todo.get_nowait()
                answers.put((rank, _resolve(endpoint)))

    for _ in range(min(len(names), MAX_LOOK_UPS)):
        threading.Thread(target=work, name="elasticjob-resolver", daemon=True).start()
    return answers


def _begin(
    rank: int,
    found: _Address | Exception,
    selector: selectors.BaseSelector,
    result: dict[int, ProbeResult],
) -> None:
    """Begin to connect. A name that the resolver refuses stays silent."""
    if isinstance(found, Exception):
        refused = isinstance(found, (socket.gaierror, ValueError))
        if not refused or (isinstance(found, OSError) and found.errno == socket.EAI_MEMORY):
            del result[rank]
        return
    *kind, address = found
    try:
        one = socket.socket(*kind)
    except OSError:
        del result[rank]
        return
    one.setblocking(False)
    code = one.connect_ex(address)
    if code in LOCAL_ERRORS:
        del result[rank]
        one.close()
    elif code in (0, errno.EINPROGRESS):
        selector.register(one, selectors.EVENT_WRITE, rank)
    else:
        result[rank] = _probe_result(code)
        one.close()


def _probe_result(code: int) -> ProbeResult:
    if code == 0:
        return ProbeResult.ACCEPTED
    return ProbeResult.REFUSED if code == errno.ECONNREFUSED else ProbeResult.SILENT
