"""Leader election among operators: which of several acts. By a Lease, as in client-go. The one that acts is
the *leading operator*; the word leader alone is for rank 0 of a round.

``core`` decides and is pure; ``elector`` reads, writes and waits. We have our own implementation because
others do not fit: kopf's peering is not an election (with equal priorities all of them pause,
nolar/kopf#734), and the official client's ``leaderelection`` blocks a thread, brings its own client, sets no
deadline for writes, and takes over by polling.
"""
