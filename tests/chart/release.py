"""The release `elasticjob` in a cluster, as tests follow it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any, Generic, TypeVar

from charts.generate import NAMESPACE
from devcluster.control_plane import ControlPlane
from devcluster.wait import wait_for
from tests import docs_commands
from tests.chart.helm import Helm
from tests.docs_commands import ROOT

NO_POD: dict[str, Any] = {"replicaCount": 0}
"""Values for tests of the chart's objects alone."""
OF_THE_RELEASE = ["-l", "app.kubernetes.io/instance=elasticjob"]
REGISTRY = "registry.example/ml"
"""The reader's."""
_UNINTERESTING = {"events", "events.events.k8s.io", "componentstatuses"}


C_co = TypeVar("C_co", bound=ControlPlane, covariant=True)


class Release(Generic[C_co]):
    """The release, made by the chart or by a document's own commands. ``home`` is helm's.

    ``seconds``: after which a document's commands have hung.
    """

    def __init__(self, cluster: C_co, home: Path, seconds: float = 240.0) -> None:
        self.cluster = cluster
        self._seconds = seconds
        self.helm = Helm(home, cluster.kubeconfig)
        self._home = home

    def words(self, document: str, test: str, **variables: str) -> str:
        """Run what the document tells to; returns what it printed. ``variables`` are the reader's."""
        tools = self.tools()
        environment = {
            **self.helm.environment,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "KUBECACHEDIR": str(self._home / "kubectl"),
            "REGISTRY": REGISTRY,
            **variables,
        }
        try:
            return docs_commands.run(ROOT / document, test, environment, self._seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.state()}") from None

    def tools(self) -> Path:
        """The folder of the programs that a reader has."""
        tools = self._home / "bin"
        if not tools.exists():
            tools.mkdir(parents=True)
            (tools / "helm").symlink_to(self.helm.binary)
            (tools / "kubectl").symlink_to(self.cluster.kubectl_binary)
        return tools

    def install(self, values: dict[str, Any], *flags: str) -> str:
        """helm upgrade --install with these values, and wait until the operator is ready."""
        where = ["--namespace", NAMESPACE, "--wait", "--timeout", "120s"]
        file = self.helm.values_file(values)
        chart = str(self.helm.chart)
        try:
            done = self.helm.run("upgrade", "--install", "elasticjob", chart, *where, "-f", file, *flags)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.state()}") from None
        return done.stderr

    def uninstall(self) -> None:
        """helm uninstall, and the definition with it."""
        self.helm.run("uninstall", "elasticjob", "--namespace", NAMESPACE, "--wait")
        self.cluster.kubectl("delete", "crd", "elasticjobs.elasticjob.dev", "--ignore-not-found")

    def operators(self, count: int = 2) -> dict[str, dict[str, Any]]:
        """The operator's pods by UID, when there are ``count`` and one leads."""

        def pods() -> list[dict[str, Any]]:
            answer = self.cluster.kubectl("-n", NAMESPACE, "get", "pods", *OF_THE_RELEASE, "-o", "json")
            found: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
            return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

        def leads() -> bool:
            return self.leader() in {pod["metadata"]["name"] for pod in pods()}

        wait_for(lambda: len(pods()) == count, 60, f"{count} operators are left", interval=0.2)
        if count > 1:
            wait_for(leads, 60, "one of them leads", interval=0.2)
        return {pod["metadata"]["uid"]: pod for pod in pods()}

    def leader(self) -> str:
        """The pod that the Lease names as the leader; it may be gone. Empty: none was."""
        lease = self.cluster.kubectl("-n", NAMESPACE, "get", "lease", "elasticjob", "-o", "json").stdout
        holder = str(json.loads(lease).get("spec", {}).get("holderIdentity", ""))
        return holder.partition("_")[0]

    def everything(self) -> dict[str, dict[str, Any]]:
        """Every object of the cluster by KIND/NAMESPACE/NAME, but for Events."""
        kinds = self.cluster.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
        wanted = ",".join(kind for kind in kinds if kind not in _UNINTERESTING)
        found = json.loads(self.cluster.kubectl("get", wanted, "-A", "-o", "json").stdout)["items"]
        return {
            f"{one['kind']}/{one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one
            for one in found
        }

    def refused(self) -> set[tuple[str, str]]:
        """What the operator has asked for and may not, as verb and resource."""
        account = f"system:serviceaccount:{NAMESPACE}:elasticjob"
        events = [json.loads(line) for line in self.cluster.audit_log.read_text().splitlines()]
        asked = [one for one in events if one["user"].get("username") == account and "responseStatus" in one]
        assert asked
        return {
            (one["verb"], one["objectRef"]["resource"])
            for one in asked
            if one["responseStatus"].get("code") == 403
        }

    def state(self) -> str:
        """What explains an operator that does not come up: pods, events, logs."""
        found = self.cluster.kubectl("-n", NAMESPACE, "get", "pods,events", "-o", "wide", check=False).stdout
        logs = (folder.glob(f"{NAMESPACE}_*/*/*.log") for folder in self.cluster.pod_logs)
        for file in sorted(itertools.chain.from_iterable(logs)):
            found += f"\n== {file.name} of {file.parent.parent.name}\n"
            found += "\n".join(file.read_text(errors="replace").splitlines()[-30:])
        return found
