"""How many open files the leader of a round needs. Handler and operator use the same formula."""

from __future__ import annotations

PER_AGENT, PER_WORKER, OWN = 2, 1, 64
"""Each agent's calls and heartbeats, each worker in the workers' store, and what any process has open."""


def needed(agents: int, workers: int) -> int:
    """How many files an agent has open that leads this many agents with this many workers in all."""
    return PER_AGENT * agents + PER_WORKER * workers + OWN
