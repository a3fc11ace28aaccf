"""A real Kubernetes control plane in a box, for the demo, the tests and the benchmarks.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are built from their Go modules into one
cached binary and started in seconds; the nodes are processes of `devcluster.nodeagent`. Nothing is faked
that the project relies on: RBAC, admission, garbage collection, watches and audit are the ones of a
production cluster, and every part can be stopped, frozen, slowed or cut off from a test.

Start at `devcluster.cluster.Cluster`; on the command line at `python -m devcluster --help`.
Linux only: it relies on prctl, /proc and abstract sockets.
"""
