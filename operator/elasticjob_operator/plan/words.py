"""Words that stand in many sentences."""

from __future__ import annotations


def node_words(name: str) -> str:
    """A node in a sentence, by its name alone where that says what it is: ``node-b``, but ``node b``."""
    if not name:
        return "its node"
    return name if name.startswith("node") else f"node {name}"
