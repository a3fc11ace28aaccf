"""helm as a test uses it, and sets of values. The renderings of two of them are kept in `golden/`.

python -m tests.chart.helm    # writes the golden files anew
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from charts.generate import CHART, NAMESPACE
from devcluster.helm import ensure_helm

IMAGES: dict[str, Any] = {
    "image": {"repository": "registry.example/ml/elasticjob-operator"},
    "handler": {"image": {"repository": "registry.example/ml/elasticjob-handler"}},
}
"""What each rendering has unless its values name others: no image is published yet."""
GOLDEN = Path(__file__).parent / "golden"
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "one-pod": {"replicaCount": 1, "leaderElection": {"enabled": False}},
    "watch-namespaces": {
        "watchNamespaces": ["team-a", "team-b"],
        "fullnameOverride": "elasticjob-teams",
        "crds": {"install": False},
        "leasePolicy": {"enabled": False},
        "leaderElection": {"enforce": False},
        "userRoles": {"create": False},
        "rbac": {"readNodes": False},
    },
    "everything": {
        "replicaCount": 3,
        "image": {
            "registry": "registry.example:5000",
            "repository": "ml/elasticjob-operator",
            "digest": "sha256:" + "0" * 64,
        },
        "handler": {
            "image": {
                "registry": "registry.example:5000",
                "repository": "ml/elasticjob-handler",
                "tag": "1.2",
                "pullPolicy": "Always",
            }
        },
        "imagePullSecrets": [{"name": "registry"}],
        "logging": {"level": "debug", "format": "json"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
        "extraArgs": ["--handler-image=registry.example/handler:1"],
        "jobDefaults": {
            "ttlSecondsAfterFinished": 604800,
            "activeDeadlineSeconds": 2592000,
            "failurePolicy": {"infrastructure": {"maxRestarts": 20, "windowSeconds": 86400}},
            "memoryCheckpoints": {"perPod": "8Gi", "copies": 0},
            "namespaces": {"team-a": {"ttlSecondsAfterFinished": 3600}},
        },
        "limits": {"maxReplicas": 64, "maxSpares": 8, "namespaces": {"team-a": {"maxReplicas": 128}}},
        "kueue": {"enabled": True},
        "gangScheduling": {"kubernetes": True, "coscheduling": True, "volcano": True},
        "nodeNotices": {"taints": ["example.com/maintenance", "karpenter.sh/disrupted"]},
        "extraVolumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "extraVolumeMounts": [{"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True}],
        "podDisruptionBudget": {"minAvailable": "50%", "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"example.com/monitoring": "yes"}}}],
            "extraIngress": [{"from": [{"podSelector": {}}]}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 3128}]}],
        },
        "probes": {"address": "[::]", "port": 9090},
        "metrics": {
            "port": 9091,
            "perJob": False,
            "maxJobs": 50,
            "tokenSecret": {"name": "metrics", "key": "bearer"},
            "service": {"enabled": True},
        },
        "topologySpreadConstraints": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"example.com/team": "platform"}},
            },
            {
                "topologyKey": "topology.kubernetes.io/zone",
                "maxSkew": 2,
                "whenUnsatisfiable": "ScheduleAnyway",
            },
        ],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "podAnnotations": {"example.com/a": "b"},
        "podLabels": {"example.com/team": "platform"},
        "commonLabels": {"example.com/owner": "platform"},
        "serviceAccount": {"name": "trainer", "annotations": {"example.com/role": "trainer"}},
        "rbac": {"ownerReferencesPermissionEnforcement": True},
        "crds": {"keep": False},
        "flowSchema": {"enabled": True, "nominalConcurrencyShares": 80},
    },
    "prometheus-operator": {
        "metrics": {
            "podMonitor": {"enabled": True, "interval": "15s", "labels": {"example.com/prometheus": "main"}},
            "prometheusRule": {
                "enabled": True,
                "labels": {"example.com/prometheus": "main"},
                "runbookUrl": "https://git.example/elasticjob/blob/main/",
            },
            "dashboard": {
                "enabled": True,
                "namespace": "monitoring",
                "annotations": {"grafana_folder": "Training"},
            },
        },
        "fullnameOverride": "trainer",
        "crds": {"install": False},
        "leasePolicy": {"enabled": False},
        "leaderElection": {"enforce": False},
        "userRoles": {"create": False},
    },
    "others-make-the-roles": {
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "made-by-others"},
        "podDisruptionBudget": {"enabled": False},
        "topologySpreadConstraints": [],
        # null takes a default away; a map would be merged with it.
        "securityContext": None,
        "podSecurityContext": None,
        "resources": None,
    },
}
"""Sets of values, by name."""
KEPT = ("default", "everything")
"""Those with a golden file; `test_variants.py` says what the others change."""


class Helm:
    """helm with a home of its own, so that nothing of the user's is read and nothing is left behind."""

    chart = CHART

    def __init__(self, home: Path, kubeconfig: Path | None = None) -> None:
        self.binary = ensure_helm()
        self._home = home
        self._rendered: dict[str, str] = {}
        self.environment = {
            **os.environ,
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_DATA_HOME": str(home / "data"),
            # Without a cluster it must not find the user's.
            "KUBECONFIG": str(kubeconfig or home / "none"),
        }

    def run(self, *args: str, check: bool = True, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        """Run helm. Raises AssertionError with what it said if it fails and ``check`` is true."""
        finished = subprocess.run(
            [str(self.binary), *args],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and finished.returncode != 0:
            raise AssertionError(f"helm {' '.join(args)} ended with {finished.returncode}: {finished.stderr}")
        return finished

    def values_file(self, values: dict[str, Any]) -> str:
        """The path of a file with these values, and with ``IMAGES`` where they name none."""
        values = merged(IMAGES, values)
        self._home.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._home, suffix=".yaml", delete=False) as file:
            yaml.safe_dump(values, file)
        return file.name

    def template(self, values: dict[str, Any], chart: Path | None = None) -> str:
        """What an installation with these values would apply; rendered once."""
        key = json.dumps([values, str(chart)])
        if key not in self._rendered:
            self._rendered[key] = self.run(*self._template(values, chart)).stdout
        return self._rendered[key]

    def refusal(self, values: dict[str, Any]) -> str:
        """What helm says about values that it refuses. Raises AssertionError if it does not."""
        answer = self.run(*self._template(values, None), check=False)
        assert answer.returncode != 0, f"accepted: {values}"
        return answer.stderr

    def _template(self, values: dict[str, Any], chart: Path | None) -> list[str]:
        command = ["template", "elasticjob", str(chart or self.chart), "--namespace", NAMESPACE]
        return [*command, "--values", self.values_file(values)]


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both, as helm merges values: of what is in both, ``above``."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = merged(below[key], above[key])
    return both


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a rendering."""
    # libyaml's: the definition alone takes Python's own parser seconds.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def of_kind(helm: Helm, values: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The objects of this kind that are rendered with these values."""
    return [one for one in objects(helm.template(values)) if one["kind"] == kind]


def golden(text: str) -> str:
    """A rendering as it is kept: the resource definition and the dashboard have tests of their own, and would
    hide the rest."""
    kept = []
    for part in text.split("\n---\n"):
        if "\nkind: CustomResourceDefinition\n" in part:
            part = part.split("\napiVersion:", 1)[0] + "\n# (the definition)"
        if "-dashboard\n" in part:
            part = part.split("\n    {\n", 1)[0] + "\n    (the dashboard)"
        kept.append(part.rstrip("\n"))
    return "\n---\n".join(kept) + "\n"


def main() -> None:
    """Write the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        helm = Helm(Path(home))
        for name in KEPT:
            (GOLDEN / f"{name}.yaml").write_text(golden(helm.template(VALUES[name])))


if __name__ == "__main__":
    main()
