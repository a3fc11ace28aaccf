"""The planner: pure decisions about one job. No I/O, no clock, no randomness of its own.

``planner`` is the order of a pass. Each folder is one subject, each module in it one rule or one kind of
data. They import only from those below them: ``conditions``, ``lifecycle``, ``changes``, ``pods`` and
``rounds``, ``charges``, ``losses``, ``template``, ``state``.
Numbers such as I9, here and elsewhere, are those of docs/internals/invariants.md.
"""
