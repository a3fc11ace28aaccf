"""Who of several operators acts: leader election by a Lease, as in client-go.

``core`` decides and is pure; ``elector`` reads, writes and waits. Code of ours because there is none to take:
kopf's peering is no election (equal priorities all freeze, nolar/kopf#734), and the official client's
``leaderelection`` blocks a thread with a client of its own, gives nobody a deadline to write by, and takes
over by polling.
"""
