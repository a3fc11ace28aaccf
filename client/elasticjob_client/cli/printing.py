"""The way to stdout and stderr: nothing that others have written reaches a terminal as a command to it.

``guard`` puts a stream of ours in the place of each, for all that is printed: by click, by Python, by us. Our
own colours, a drawn screen and a log that was asked for as it is go to the ``raw`` stream, and
``screen.console`` cleans the text in what it draws. A test knows all who use it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from elasticjob_client.explain.terminal_text import coloured, plain, states


class Guarded:
    """A text stream that writes text without what a terminal acts on. It has no ``buffer``: a way around."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding, self.errors = stream.encoding, stream.errors

    def write(self, text: str) -> int:
        self.stream.write(plain(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self.stream.closed


def guard() -> None:
    """Let only plain text pass to stdout and stderr."""
    for name in ("stdout", "stderr"):
        setattr(sys, name, Guarded(raw(getattr(sys, name))))


def raw(stream: TextIO) -> TextIO:
    """The stream itself, for what is ours or has been cleaned."""
    found: object = stream
    return found.stream if isinstance(found, Guarded) else stream


def log_line(text: str, as_it_is: bool = False) -> None:
    """A line of a log on stdout. On a terminal it keeps its colours, and of a bar the last state is shown."""
    out = raw(sys.stdout)
    if not as_it_is:
        text = coloured(states(text)[-1]) if out.isatty() else "\r".join(map(plain, states(text)))
    out.write(f"{text}\n")
