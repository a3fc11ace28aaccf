"""A test double of kubelet: it plays any number of nodes and runs pods as plain processes.

The rest of the cluster is real: the scheduler binds pods to the nodes registered here, the API server hands
out tokens, the controller manager judges the nodes' Leases. Only what a kubelet and a container runtime would
do is imitated, as far as a training job can see it: an address, environment, volumes, init containers, exit
codes, restarts, hooks, signals, grace periods, logs, and what happens when a node is lost. Images are not:
an image name stands for a Python environment of this machine.

Every container has its own PID, mount and UTS namespace. Without root they are made in a user namespace; only
as root a pod can have a network of its own.

Tests reach the agent through :class:`devcluster.nodeagent.client.NodeAgentClient`.
"""
