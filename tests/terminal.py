"""A terminal of 120 columns that is read by a program instead of a person."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyte

COLUMNS, LINES = 120, 40
INTERRUPT = "\x03"
"""Ctrl-C: the terminal sends SIGINT to the program that it controls."""
_CONTROLLED = """\
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where a shell has begun the tests in the background
os.execvp(sys.argv[1], sys.argv[1:])
"""
DEADLINE_SECONDS = 60


class Terminal:
    """``process`` runs on it; ``text`` is what stands on the screen, as far as ``wait`` has read."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._descriptor = descriptor
        self._stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).strip()

    def wait(self, until: Callable[[str], bool]) -> str:
        """Read until the screen is as it should be. Raises TimeoutError with what stands there."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not until(self.text):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"after {DEADLINE_SECONDS} s the screen shows:\n{self.text}")
            self._read(0.2)
        return self.text

    def interrupt(self) -> int:
        """Press Ctrl-C, and read until the program has ended; gives its exit code. Pressed again after a
        while, as a person would: ``input()`` looks for signals, prints the question and waits for a key, so
        that it misses one that comes right after the question."""
        for _ in range(3):
            self.press(INTERRUPT)
            with suppress(TimeoutError):
                return self.end(DEADLINE_SECONDS / 4)
        return self.end()

    def end(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Read until the program has ended; gives its exit code. Raises TimeoutError with what is shown."""
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"after {seconds} s it still runs, and shows:\n{self.text}")
            self._read(0.05)
        while self._read(0.0):
            pass
        return code

    def press(self, key: str) -> None:
        os.write(self._descriptor, key.encode())

    def _read(self, seconds: float) -> bool:
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        with suppress(OSError):  # Linux: the program has closed its side
            self._stream.feed(os.read(self._descriptor, 65536))
            return True
        return False


@contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> Iterator[Terminal]:
    """Runs a command on one; it is killed in the end if it still runs."""
    ours, theirs = pty.openpty()
    size = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _CONTROLLED, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, **size},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
