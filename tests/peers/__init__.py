"""Histories of runs without operator: the real plan, election and seat (``elasticjob.peers``) on a simulated
API server, in virtual time, with faults of every kind, and an oracle that knows the truth."""
