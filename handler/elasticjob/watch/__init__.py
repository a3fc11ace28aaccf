"""Establishes a round, then watches its members and its progress.

Runs in torchrun's agent: establishing in the main thread; heartbeats, probes and relay in a thread each.
"""
