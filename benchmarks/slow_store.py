"""A store for checkpoints that is as slow as one likes: a local folder behind fsspec, as `slow200:///FOLDER`.

It stands for an object store or a network disk of which each process gets 200 MB/s: after what was read or
written the process sleeps for as long as these bytes would have taken, less what they have taken here. It has
no latency: a store far away is slower than this one.
"""

from __future__ import annotations

import time
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

BYTES_PER_SECOND = 200e6
SCHEME = "slow200"


class SlowFile:
    """A file, with a pause for each read and write."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> SlowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        began = time.monotonic()
        content: bytes = self._file.read(size)
        _pause(len(content), began)
        return content

    def readinto(self, buffer: Any) -> int:
        """As a file's."""
        began = time.monotonic()
        size: int = self._file.readinto(buffer)
        _pause(size, began)
        return size

    def write(self, content: Any) -> int:
        """As a file's."""
        began = time.monotonic()
        size: int = self._file.write(content)
        _pause(size, began)
        return size


class SlowFolder(LocalFileSystem):  # type: ignore[misc]
    """A local folder whose files are read and written at 200 MB/s."""

    protocol = SCHEME

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        text = str(path)
        return LocalFileSystem._strip_protocol(text.removeprefix(f"{SCHEME}://"))

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **named: Any) -> Any:
        return SlowFile(super()._open(path, mode, block_size, **named))


def register() -> None:
    """Let fsspec know it, in this process."""
    fsspec.register_implementation(SCHEME, SlowFolder, clobber=True)


def _pause(size: int, began: float) -> None:
    time.sleep(pause_seconds(size, time.monotonic() - began))


def pause_seconds(size: int, took: float) -> float:
    """How long to sleep after ``size`` bytes, which have taken ``took`` seconds here."""
    return max(0.0, size / BYTES_PER_SECOND - took)
