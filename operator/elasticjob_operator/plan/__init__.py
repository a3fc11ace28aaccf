"""The planner: pure decisions about one job. No I/O, no clock, no randomness of its own.

``planner`` is the order of a pass; one file per policy:

* ``members``: what is known of each member of the round, and the evidence against it
* ``rounds``: breaking, forming, publishing and establishing rounds
* ``failures``: causes, accounts and charges
* ``scaling``: growing and shrinking a running round
* ``pods``: slots, attempts, replacement and clean-up
* ``lifecycle``: completion and failure of the job
* ``conditions``: the sentences that people read
"""
