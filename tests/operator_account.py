"""The service accounts of the tests' operators: they have the rights that the chart gives, and no other.

The rights are those of `deploy/operator.yaml`, which is made from the chart. What the operators then ask of
the API server is taken from its audit log when the cluster ends, for ``python -m tests.operator_rights``.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from charts.generate import MANIFESTS, NAMESPACE
from devcluster import kubeconfig
from devcluster.access import ClusterAccess
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests import operator_rights

NAME = "elasticjob"
LIFETIME = "24h"
"""Of the tokens: longer than any session of tests."""
_DEADLINE = 90.0
_USERS: dict[Path, set[str]] = {}
"""By cluster, as its state folder: whose requests are an operator's."""
_CONFIGS = itertools.count(1)


def manifests() -> list[dict[str, Any]]:
    """The namespace of the chart's default installation, and who may do what there."""
    kinds = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    every = yaml.safe_load_all(MANIFESTS.read_text())
    return [one for one in every if one and one["kind"] in kinds]


def config(cluster: ClusterAccess, server: str | None = None) -> Path:
    """A kubeconfig of the chart's own service account, by way of ``server`` if that is given.

    A cluster that is there already is left as it is: the user's own kubeconfig is returned.
    """
    if not isinstance(cluster, Cluster):
        return cluster.kubeconfig
    if cluster.state_dir not in _USERS:
        cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(manifests()))
        watch(cluster)
    return _config(cluster, NAMESPACE, NAME, server)


def renew(cluster: Cluster, file: Path) -> None:
    """Put a new token of the chart's service account into a kubeconfig, as kubelet does into a volume."""
    os.replace(config(cluster), file)


def bind(cluster: Cluster, namespace: str, name: str) -> None:
    """Make a service account with the same rights in a namespace of the test's, with which it goes."""
    config(cluster)
    where = {"name": name, "namespace": namespace}
    made: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where}]
    uid = cluster.kubectl("get", "namespace", namespace, "-o", "jsonpath={.metadata.uid}").stdout
    # The bindings are the cluster's, and go with the namespace.
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid}
    for binding in manifests():
        if binding["kind"] == "ClusterRoleBinding":
            meta = {"name": f"{namespace}-{name}-{binding['metadata']['name']}", "ownerReferences": [owner]}
            subjects = [{"kind": "ServiceAccount", **where}]
            made.append({**binding, "metadata": meta, "subjects": subjects})
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(made))
    _USERS[cluster.state_dir].add(f"system:serviceaccount:{namespace}:{name}")


def further(cluster: Cluster, namespace: str, name: str) -> Path:
    """A kubeconfig of such an account: one operator among several."""
    bind(cluster, namespace, name)
    return _config(cluster, namespace, name, None)


def watch(cluster: Cluster, denials: bool = True) -> None:
    """Note at the cluster's end what its operators have asked for; without ``denials`` only what they got."""
    users = _USERS.setdefault(cluster.state_dir, {f"system:serviceaccount:{NAMESPACE}:{NAME}"})
    cluster.before_stop(lambda: operator_rights.note(cluster.audit_logs, users, denials))


def _config(cluster: Cluster, namespace: str, name: str, server: str | None) -> Path:
    command = ("-n", namespace, "create", "token", name, f"--duration={LIFETIME}")
    token = cluster.kubectl(*command).stdout.strip()
    client = ApiClient(cluster.server, cluster.ca_file, token)
    # All of its bindings: the authorizer learns of them one by one.
    for path in ("/apis/elasticjob.dev/v1alpha1/elasticjobs", "/api/v1/nodes"):
        wait_for(partial(client.is_ok, f"{path}?limit=1"), _DEADLINE, f"{name} may list {path}")
    file = cluster.state_dir / f"{namespace}-{name}-{os.getpid()}-{next(_CONFIGS)}.kubeconfig"
    return kubeconfig.write(file, server or cluster.server, cluster.ca_file, token)
