"""Stops all workers of a round at one step. Runs in torchrun's agent, in one thread while a round drains."""
