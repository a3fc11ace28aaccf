"""Rounds without an operator: the participants elect one of them, the coordinator, and it forms the rounds of
all.

Pure: nothing here reads a clock or does I/O; ``elasticjob.coordination`` does that. The invariants P1 to P8
are those of docs/internals/peers.md.

``run`` says what a run is, ``settled`` what stands in its round Lease, ``sight`` what a coordinator sees of
the participants. ``plan`` is the coordinator's look at a run, ``election`` says when a participant takes
over, and ``seat`` puts both in order: what it hears goes in, what it has to do comes out.
"""
