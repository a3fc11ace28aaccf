"""Text from pods, made safe for a sentence: one line, printable, of limited length; and parts of sentences.

What a pod reports ends up in statuses, Events, logs and terminals. Control characters could forge log lines
or control a terminal, and characters that change the direction of writing could hide text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_TOKEN = re.compile(r"[!-~]+")
_OWN_NEWS = re.compile(r"\S+ \S+ elasticjob [DI] ")
"""How the lines begin that this package writes to a pod's log below a warning."""

NO_ERROR_TEXT = (
    "see its log (for the exception's text here, decorate the main function with "
    "torch.distributed.elastic.multiprocessing.errors.record)"
)
"""Ends the report on a worker that failed without an error text: how to get one the next time."""


def one_line(text: str, limit: int) -> str:
    """``text`` on one line of at most ``limit`` characters, with a space for each that can't be printed."""
    if len(text) <= limit and text.isprintable():
        return text
    head = text[: 4 * limit]
    return " ".join("".join(c if c.isprintable() else " " for c in head).split())[:limit]


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: three of them, and how many more there are."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def last_words(text: str, limit: int) -> str:
    """The last lines of a log with letters or digits, as many as fit into ``limit`` characters; the beginning
    of the last one if that is too long.

    This package's own lines below a warning are left out: they would hide what the script has said.
    """
    said = ""
    for line in reversed(text[-16 * limit :].splitlines()):
        words = one_line(line, limit).strip()
        if not any(sign.isalnum() for sign in words) or _OWN_NEWS.match(line):
            continue
        longer = f"{words} | {said}" if said else words
        if len(longer) > limit:
            break
        said = longer
    return said


def is_token(text: str, longest: int) -> bool:
    """Whether this is a word of printable ASCII: ids, states, names."""
    return len(text) <= longest and _TOKEN.fullmatch(text) is not None


def are_tokens(words: Sequence[Any], longest: int) -> bool:
    """Whether each of these is a string for which ``is_token`` is true; for hundreds at once."""
    try:
        text = "".join(words)
    except TypeError:
        return False
    short = all(words) and max(map(len, words), default=0) <= longest
    return short and (not text or _TOKEN.fullmatch(text) is not None)


def counted(count: int, noun: str) -> str:
    """A number with its noun: ``1 member``, ``2 members``, ``2 processes``."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def in_a_row(count: int, noun: str) -> str:
    """As ``counted``: ``1 round``, ``2 rounds in a row``."""
    return counted(count, noun) if count == 1 else f"{counted(count, noun)} in a row"


def node_words(name: str) -> str:
    """A node in a sentence: its name, with "node" before it unless the name begins so."""
    if not name:
        return "its node"
    return name if name.startswith("node") else f"node {name}"
