"""Runs in torchrun's agent, in threads of its own: how the processes that torch started for a round end, why
they fail, what they leave behind.

It touches workers only by signals and ``/proc``. What runs inside of them is in ``worker``.
"""
