"""A cluster that exists already: the one of the user's kubeconfig."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from devcluster.access import ClusterAccess
from devcluster.build import KUBECTL, ensure_built

KUBECONFIG_VARIABLE = "DEVCLUSTER_KUBECONFIG"


def existing_kubeconfig() -> Path | None:
    """The kubeconfig of the cluster that the user wants tests to run against; None: start a cluster."""
    path = os.environ.get(KUBECONFIG_VARIABLE)
    return Path(path) if path else None


class ExistingCluster(ClusterAccess):
    """The current context of a kubeconfig. It offers no faults: its components are not ours to break."""

    def __init__(self, kubeconfig: Path) -> None:
        """Raises KubectlError if the kubeconfig can't be read or its server doesn't answer, RuntimeError if
        it names no authority."""
        self.kubeconfig = kubeconfig
        view = self.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json")
        content: dict[str, Any] = json.loads(view.stdout)
        cluster = content["clusters"][0]["cluster"]
        self.server = cluster["server"]
        self._user: dict[str, Any] = content["users"][0]["user"]
        if "certificate-authority-data" not in cluster:
            raise RuntimeError(f"{kubeconfig}: the cluster has no certificate-authority")
        self._scratch = tempfile.TemporaryDirectory(prefix="devcluster-existing-")
        self.ca_file = Path(self._scratch.name, "ca.crt")
        self.ca_file.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        version: dict[str, str] = json.loads(self.kubectl("get", "--raw", "/version").stdout)
        # Some clouds' minor version is 30+.
        self.kubernetes = f"{version['major']}.{version['minor'].rstrip('+')}"

    @property
    def admin_token(self) -> str:
        """The token of the kubeconfig's user."""
        if "token" not in self._user:
            raise RuntimeError(f"{self.kubeconfig}: the user has no token")
        return str(self._user["token"])

    @property
    def kubectl_binary(self) -> Path:
        """The user's own kubectl; devcluster's if there is none."""
        own = shutil.which(KUBECTL)
        return Path(own) if own else ensure_built() / KUBECTL
