"""What a program is given by its shell before a command begins: Ctrl-C, and streams that may be closed."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def hold() -> None:
    """Until ``begun``, Ctrl-C ends the program at once and silently: there is nothing yet to undo."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, _end)


def begun() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, as Python does by default."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_: int, __: FrameType | None) -> None:
    os._exit(130)


def open_streams() -> None:
    """A stdin or stderr that is closed is empty, and takes all: Python has None there."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - as long as the program runs
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the program runs
