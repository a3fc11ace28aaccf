"""A shell in a terminal of tmux: keys are sent, and the screen is read."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_SECONDS = 120.0
_PROMPT = "ready$ "


class Tmux:
    """One window of a tmux server of its own, whose socket is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._environment = {**os.environ, "TMUX_TMPDIR": str(folder), "TERM": "xterm-256color"}
        for name in ("TMUX", "COLUMNS", "LINES"):
            self._environment.pop(name, None)

    def call(self, *words: str) -> str:
        """What a command of tmux prints. Raises FileNotFoundError if tmux is not installed."""
        command = ["tmux", "-f", "/dev/null", "-L", "test", *words]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    @property
    def text(self) -> str:
        """The screen, without what is blank."""
        return "\n".join(line.rstrip() for line in self.lines).strip()

    @property
    def lines(self) -> list[str]:
        """The screen, line by line."""
        return self.call("capture-pane", "-p").splitlines()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        columns, lines = self.call("display-message", "-p", "#{pane_width} #{pane_height}").split()
        return int(columns), int(lines)

    def wait(self, until: Callable[[str], object], what: str) -> str:
        """Read until the screen is as it should be. Raises AssertionError with what stands there."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not until(text := self.text):
            assert time.monotonic() < deadline, f"{what}: not so after {DEADLINE_SECONDS} s:\n{text}"
            time.sleep(0.1)
        return text

    def press(self, *keys: str) -> None:
        """Keys as tmux names them, such as q, Enter and C-c."""
        self.call("send-keys", *keys)

    def enter(self, command: str) -> None:
        """Type a command at the shell's prompt, which is waited for."""
        self.wait(lambda text: text.endswith(_PROMPT.strip()), "the shell is ready")
        self.call("send-keys", "-l", f" clear; {command}")
        self.press("Enter")

    def resize(self, columns: int, lines: int) -> None:
        """As a person does with the mouse."""
        self.call("resize-window", "-x", str(columns), "-y", str(lines))


@contextmanager
def terminal(folder: Path, columns: int = 120, lines: int = 40) -> Iterator[Tmux]:
    """A shell in a terminal of this size; what runs in it is ended."""
    found = Tmux(folder)
    shell = f"env PS1='{_PROMPT}' sh"
    found.call("new-session", "-d", "-x", str(columns), "-y", str(lines), shell)
    try:
        yield found
    finally:
        found.call("kill-server")
