"""Command-line arguments that are lists."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of known words between commas; an empty text has no words."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(word for word in text.split(",") if word)
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        return found

    return parse


def numbers(text: str) -> tuple[int, ...]:
    """Parse numbers between commas, each at least 1."""
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of participants between commas, each at least 2; an empty text has none."""
    found = tuple(int(word) for word in text.split(",") if word)
    if min(found, default=2) < 2:
        raise argparse.ArgumentTypeError("at least 2 participants")
    return found
