"""Lines of a log within other text: nothing in them may colour, clear or rename the terminal: pure.

What comes by a status needs none of this: the handler keeps control characters out of it.
"""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]")
"""Titles and links, and all that begins as colours do."""


def excerpt(line: str) -> str:
    """The line without sequences for terminals, and blanks for what else is not printed; of a bar, whose
    states are in one line, the last."""
    states = [state for state in _SEQUENCE.sub("", line).split("\r") if state.strip()]
    return "".join(c if c.isprintable() or c == "\t" else " " for c in states[-1]) if states else ""
