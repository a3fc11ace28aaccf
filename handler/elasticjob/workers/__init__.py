"""The processes that torch started for a round: how they end, why they fail, what they leave behind.

Runs in torchrun's agent, in threads of its own, and touches workers only by signals and ``/proc``.
"""
