"""How many open files the leader of a round needs. Handler and operator use the same formula."""

from __future__ import annotations

PER_AGENT, PER_WORKER, OWN = 2, 1, 64
"""Each agent's calls and its beats, each worker in the workers' store, and what any process has."""


def needed(agents: int, workers: int) -> int:
    """The files that the agent has open which leads so many agents with so many workers in all."""
    return PER_AGENT * agents + PER_WORKER * workers + OWN
