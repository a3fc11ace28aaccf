"""How many open files the leader of a round needs: one formula for handler and operator."""

from __future__ import annotations

PER_AGENT, PER_WORKER, OWN = 2, 1, 64
"""Each agent's calls and heartbeats, each worker's connection to the workers' store, what any process has
open."""


def needed(agents: int, workers: int) -> int:
    """How many files the leader of this many agents, with this many workers in all, has open."""
    return PER_AGENT * agents + PER_WORKER * workers + OWN
