"""Serves, reaches and probes the TCPStores of rounds.

Runs in torchrun's agent: calls of a store in threads that can be abandoned.
"""
