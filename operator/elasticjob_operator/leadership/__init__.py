"""Leader election: which of several operators acts. By a Lease, as in client-go.

``core`` decides and is pure; ``elector`` reads, writes and waits. We have our own implementation because
others do not fit: kopf's peering is not an election (with equal priorities all of them pause,
nolar/kopf#734), and the official client's ``leaderelection`` blocks a thread, brings its own client, sets no
deadline for writes, and takes over by polling.
"""
