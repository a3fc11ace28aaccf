"""The planner: pure decisions about one job. No I/O, no clock, no randomness of its own.

``planner`` is the order of a pass; every other module is one policy or a piece of data, and says which.
Numbers such as I9, here and elsewhere, are those of docs/internals/invariants.md.
"""
