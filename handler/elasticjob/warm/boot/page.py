"""What torchrun and a waiting interpreter say to each other, and how."""

from __future__ import annotations

import ctypes
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

CONFIG_ENV = "ELASTICJOB_WARM"
"""JSON: ``socket`` and ``page``, descriptors; ``imports``, names of modules; ``pythonpath``, the worker's
own, or null. Instead of JSON, ``probe``: exit with 0 to show that this package runs at all."""
GONE = 70
"""Exit code when torchrun is gone."""
PAGE_BYTES = 4096
IMPORTING, READY, UNUSABLE, MODULE, WARM, COLD, SCRIPT = b"i", b"r", b"u", b"m", b"w", b"c", b"s"
"""The first byte of the page; for some states a text follows. MODULE: unusable because a module cannot be
imported; the text is its name, a colon, and why. COLD and SCRIPT: started cold after all, SCRIPT because of
what the script does."""


class Unusable(Exception):
    """Why this process cannot become a warm worker; it becomes a cold start."""


class CannotImport(Unusable):
    """A module of the list cannot be imported beforehand."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot import {name}: {why}")
        self.text = f"{name}: {why}"


class Page:
    """The state of this process, in memory that it shares with torchrun, without a descriptor: the
    script finds none that a cold start has not, and the script's process can still report a cold start."""

    def __init__(self, descriptor: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        ]
        read_write, shared = 3, 1
        address = libc.mmap(None, PAGE_BYTES, read_write, shared, descriptor, 0)
        os.close(descriptor)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "cannot map the page")
        self._address: int = address

    def say(self, state: bytes, text: str = "") -> None:
        """Write the text before the state: who reads the state finds its text."""
        data = text.encode("utf-8", "replace")[: PAGE_BYTES - 2] + b"\0"
        ctypes.memmove(self._address + 1, data, len(data))
        ctypes.memmove(self._address, state, 1)


class Request:
    """What torch would have started: ``args`` after the interpreter, ``env``, ``cwd``, and the descriptors of
    its output."""

    def __init__(self, values: Mapping[str, Any], stdout: int, stderr: int) -> None:
        self.args: list[str] = values["args"]
        self.env: dict[str, str] = values["env"]
        self.cwd: str = values["cwd"]
        self.stdout, self.stderr = stdout, stderr


def wait_for_request(channel: socket.socket) -> Request:
    """Wait until torchrun wants a worker; if torchrun is gone, end this process."""
    try:
        data, files, _, _ = socket.recv_fds(channel, 1, 3)
        if not data or len(files) != 3:
            os._exit(GONE)
        with open(files[0], "rb") as file:
            file.seek(0)
            return Request(json.load(file), files[1], files[2])
    except BaseException:  # noqa: BLE001 - KeyboardInterrupt, too
        os._exit(GONE)
