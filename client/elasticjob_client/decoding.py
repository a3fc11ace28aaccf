"""Types are made ready for decoding by one thread at a time.

When msgspec decodes a type for the first time it collects what it has to know of it, without a lock: two
threads that do so at once end the process (0.22.0, segmentation fault). Here the first time of each type is
behind a lock; afterwards a look into a set is all that it costs.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_LOCK = threading.Lock()
_READY: set[Any] = set()
_LISTS_READY: set[Any] = set()


def ready(kind: type[_T]) -> type[_T]:
    """Return the type when any thread may decode an object of it."""
    if kind not in _READY:
        with _LOCK, contextlib.suppress(msgspec.ValidationError):
            if issubclass(kind, msgspec.Struct):
                msgspec.convert(None, kind)
        _READY.add(kind)
    return kind


def list_ready(kind: type[_T]) -> type[_T]:
    """Return the type of lightkube when any thread may decode a list of it."""
    if kind not in _LISTS_READY:
        from lightkube.core import decoders

        with _LOCK:
            decoders.decode_list(b'{"items": []}', kind)
        _LISTS_READY.add(kind)
    return kind
