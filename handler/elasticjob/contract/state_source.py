"""Where the state of a round came from."""

from __future__ import annotations

from elasticjob.contract.str_enum import StrEnum


class Source(StrEnum):
    """Where the state was read."""

    MEMORY = "Memory"
    """From the memory of each rank's own agent alone."""
    PEER = "Peer"
    """From the memory of agents, some of it from other pods."""
    STORAGE = "Storage"
    NOTHING = "Nothing"
    """There was no checkpoint: training starts with step 0."""
