"""Nodes that kubelets run: each is a machine as far as Kubernetes can tell.

A node has namespaces of its own (network, processes, mounts, host name, control groups), and in them a
containerd, a kubelet and a kube-proxy. Containers come from images, which the nodes pull from a registry that
the cluster has; nodes and pods are on a network to which this machine is connected.

Promises: nothing outlives the cluster, however it ends. Mounts, networks and sysctls are those of a node's
namespaces, which the kernel removes with the node's last process; only its empty control groups are removed
by the supervisor, and those of a supervisor that was killed by the next cluster.

Linux and root only (`requirements` says what else). What is not like a real machine: all nodes have the
host's kernel, clock, processors, memory and root file system, so a hostPath is the same folder on all.
"""
