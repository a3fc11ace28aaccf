"""Text of others without what a terminal would act on. Pure.

That is sequences which rename it, clear it or fill the clipboard, and characters which move the cursor or
turn the direction of writing.

Pods, registries and users with the right to create Events write such text. ``cli.printing`` lets nothing else
reach a terminal.
"""

from __future__ import annotations

import json
import re

_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90-\x9f]*(?:\x07|\x1b\\|\x9c)"
"""Titles, links, the clipboard, and what else ends with a terminator."""
_CONTROL = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
"""Colours, and what moves the cursor or clears the screen."""
_SHORT = r"\x1b[ -/]*[0-OQ-WYZ\\`-~]"
"""A full reset, another character set, a saved cursor."""
_SEQUENCE = re.compile(f"{_STRING}|{_CONTROL}|{_SHORT}")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_ACTS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters but tab and line feed; separators of lines; marks of direction."""
_CHARACTER = re.compile(f"[{_ACTS}]")


def plain(text: str) -> str:
    """The text without sequences, and with a blank for each other character that a terminal acts on."""
    if not _CHARACTER.search(text):
        return text
    return _CHARACTER.sub(" ", _SEQUENCE.sub("", text))


def coloured(text: str) -> str:
    """The plain text with its colours, which end with it."""
    if "\x1b" not in text:
        return plain(text)
    kept = _COLOUR.findall(text)
    parts = map(plain, _COLOUR.split(text))
    shown = "".join(part + colour for part, colour in zip(parts, [*kept, ""], strict=True))
    return f"{shown}\x1b[0m" if kept else shown


def states(line: str) -> list[str]:
    """Those of a progress bar, which are in one line: the terminal would show the last. At least one."""
    return [state for state in line.split("\r") if state.strip()] or [""]


def excerpt(line: str) -> str:
    """A line of a log within other text: of a bar, the last state that shows something."""
    return plain(states(_SEQUENCE.sub("", line))[-1])


def escaped(json_text: str) -> str:
    r"""JSON with ``\u....`` in place of such characters, which JSON takes as they are from DEL on."""
    return _CHARACTER.sub(lambda found: json.dumps(found[0])[1:-1], json_text)
