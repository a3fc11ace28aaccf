"""A TCPStore server that ends when it is closed."""

from __future__ import annotations

import functools
import os
from datetime import timedelta

from torch.distributed import TCPStore

from elasticjob.store.errors import StoreGone

LIBUV_ENV = "USE_LIBUV"


@functools.cache
def has_libuv() -> bool:
    """Whether this torch was built with libuv. Found out once, by a server that is closed at once."""
    try:
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:
        return "libuv" not in str(error).lower()  # another error does not mean that it is missing
    return True


def use_libuv() -> bool:
    """Whether TCPStores shall use libuv. torch's own do unless ``USE_LIBUV`` is not 1, and fail if it is
    missing (Debian's torch)."""
    return os.environ.get(LIBUV_ENV, "1") == "1" and has_libuv()


def serve() -> TCPStore:
    """Start a TCPStore server of our own on a free port (its ``.port``)."""
    return TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
        use_libuv=use_libuv(),
    )


class Server:
    """A TCPStore server that ends when it is closed, even if the object is still referenced."""

    def __init__(self, store: TCPStore) -> None:
        self._store: TCPStore | None = store
        self.port: int = store.port

    @property
    def store(self) -> TCPStore:
        """The server's own client. Raises StoreGone when it is closed."""
        if self._store is None:
            raise StoreGone("given up")
        return self._store

    def close(self) -> None:
        """Let it go: its ports and threads end at once, or with the call that a connection is still in."""
        self._store = None
