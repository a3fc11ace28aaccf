"""Words that stand in many sentences: pure."""

from __future__ import annotations

PLAIN_TORCHRUN = (
    "the command must be `torchrun train.py`, without --standalone, --nnodes, --rdzv-backend, "
    "--rdzv-endpoint or --rdzv-id"
)
"""What the operator expects of a job's command: it sets these flags by the environment."""


def counted(number: int, noun: str) -> str:
    """``1 member``, but ``2 members``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def node_words(name: str) -> str:
    """A node in a sentence, by its name alone where that says what it is: ``node-b``, but ``node b``."""
    if not name:
        return "its node"
    return name if name.startswith("node") else f"node {name}"
