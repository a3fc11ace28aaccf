"""Memory checkpoints, the agent's part: each agent holds pieces of its workers' state in memory and sends
copies of them to another agent.

A piece is what one rank has saved at one step. It is in a memfd that a worker has written and handed to its
agent, so it outlives the worker, and the kernel frees it with the agent. ``pieces`` names pieces, ``decide``
says which saves can be resumed and what may go, ``shelf`` holds the descriptors, ``keeper`` the rules of a
round; ``copies`` and ``serving`` are its threads, ``wire`` and ``client`` the protocol.

Only Python's standard library is used here. The worker's part is ``elasticjob.checkpoint.memory``.
"""
