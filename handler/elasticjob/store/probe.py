"""Whether ports accept connections, many at once."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import time
from collections.abc import Mapping

from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.core.heartbeats import ProbeResult

logger = logging.getLogger(__name__)


LOCAL_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
"""Errors of this process or its machine; no peer is to blame."""


def probe(endpoints: Mapping[int, str], seconds: float) -> dict[int, ProbeResult]:
    """Try to connect to all these ports at once, for this many seconds. Never raises: a port that could not
    be tried, if descriptors are short for example, is not in the answer."""
    result: dict[int, ProbeResult] = dict.fromkeys(endpoints, ProbeResult.SILENT)
    try:
        _probe(endpoints, time.monotonic() + seconds, result)
    except OSError as error:
        logger.debug("cannot probe ports: %s", error)
        return {}
    return result


def _probe(endpoints: Mapping[int, str], deadline: float, result: dict[int, ProbeResult]) -> None:
    with selectors.DefaultSelector() as selector:
        for rank, endpoint in endpoints.items():
            host, port = parse_endpoint(endpoint)
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
                    0
                ]
            except OSError as error:
                if not isinstance(error, socket.gaierror) or error.errno == socket.EAI_MEMORY:
                    del result[rank]
                continue
            try:
                one = socket.socket(family, kind, protocol)
            except OSError:
                del result[rank]
                continue
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
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                result[key.data] = _probe_result(key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                selector.unregister(key.fileobj)
                key.fileobj.close()
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def _probe_result(code: int) -> ProbeResult:
    if code == 0:
        return ProbeResult.ACCEPTED
    return ProbeResult.REFUSED if code == errno.ECONNREFUSED else ProbeResult.SILENT
