"""A custom resource definition, applied and served."""

from __future__ import annotations

from pathlib import Path

import yaml

from devcluster.access import ClusterAccess
from devcluster.wait import wait_for

_SERVED_SECONDS = 60.0


def install(cluster: ClusterAccess, file: Path) -> None:
    """Apply the definition and wait until its resource is served.

    `kubectl wait --for=condition=Established` fails on a definition that has no conditions yet.
    """
    cluster.kubectl("apply", "-f", str(file))
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    wait_for(
        lambda: cluster.kubectl("get", name, "--all-namespaces", check=False).returncode == 0,
        _SERVED_SECONDS,
        f"{name} is served",
        interval=0.1,
    )
