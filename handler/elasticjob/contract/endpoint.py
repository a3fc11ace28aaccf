"""``host:port`` of a store, as records have it."""

from __future__ import annotations

import re
from functools import lru_cache

from elasticjob.contract.fields import RecordError

_HOST = re.compile(r"[0-9A-Za-z_.:%-]+")
_PORT = re.compile(r"[0-9]{1,5}")


@lru_cache(maxsize=1024)
def parse_endpoint(text: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 host in brackets). Raises RecordError."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or len(host) > 255 or not _HOST.fullmatch(host) or not _PORT.fullmatch(port):
        raise RecordError(f"endpoint {text[:80]!r}: expected host:port")
    if not 0 < int(port) < 65536:
        raise RecordError(f"endpoint {text[:80]!r}: port must be from 1 to 65535")
    return host, int(port)


def format_endpoint(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
