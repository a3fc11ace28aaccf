"""A real Kubernetes control plane without containers, for tests that break things.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are built from their Go modules into one
cached binary and started in seconds; the nodes are played by `devcluster.nodeagent`. RBAC, admission,
garbage collection, watches and audit are those of a production cluster, and a test can stop, freeze, slow
down or cut off every part.

Start at `devcluster.cluster.Cluster`, or on the command line at `devcluster --help`.
Linux only: it relies on prctl, /proc and abstract sockets.
"""
