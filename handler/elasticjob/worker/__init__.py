"""Runs inside each training process: reports of steps, requests to stop, stacks.

Each worker and torchrun import it with the package, so it imports nothing heavy. What torchrun's agent does
with these processes is in ``workers``.
"""
