"""Jobs as users write them, and what kubectl says of them."""

from __future__ import annotations

import json
import re
from typing import Any

from devcluster.access import ClusterAccess
from devcluster.build import default_kubernetes

CONTAINER = {"name": "train", "image": "train", "command": ["torchrun", "train.py"]}
TEMPLATE: dict[str, Any] = {"spec": {"containers": [CONTAINER]}}
FULL: dict[str, Any] = {
    "replicas": 4,
    "minReplicas": 2,
    "maxReplicas": 8,
    "spares": 1,
    "nprocPerNode": "auto",
    "handlerSource": "Injected",
    "warmWorkers": {"enabled": True, "imports": ["transformers", "torch.utils.data"]},
    "memoryCheckpoints": {"perPod": "8Gi", "copies": 1, "spread": "Node"},
    "rendezvous": {"rejoinTimeoutSeconds": 60},
    "scaling": {
        "sizes": [1, 2, 4],
        "extraPriorityClassName": "low",
        "scaleUpDelaySeconds": 10,
        "paybackSeconds": 600,
    },
    "failurePolicy": {
        "application": {"maxRestarts": 3, "windowSeconds": 3600},
        "infrastructure": {"maxRestarts": 20, "windowSeconds": 86400},
        "preemption": {"maxRestarts": 100},
        "rules": [
            {"name": "bad-gpu", "onErrorPattern": "CUDA error: .*ECC", "action": "ExcludeNode"},
            {"name": "bad-input", "onWorkerExitCodes": [42, -6], "action": "FailJob"},
            {"name": "spot", "onPodReasons": ["PreemptionByScheduler", "Evicted"], "action": "Ignore"},
        ],
        "maxRoundsWithoutProgress": 5,
        "hangTimeoutSeconds": 1800,
        "idleDeadlineSeconds": 3600,
        "fencing": {"type": "AfterSeconds", "afterSeconds": 300},
    },
    "suspend": False,
    "drainSeconds": 60,
    "managedBy": "elasticjob.dev/operator",
    "activeDeadlineSeconds": 86400,
    "ttlSecondsAfterFinished": 3600,
    "cleanPodPolicy": "Running",
    "networkPolicy": "JobOnly",
    "gangScheduling": "Kubernetes",
    "template": TEMPLATE,
}
"""Each field of the spec is set."""
QUOTED = re.compile(r'Invalid value: (?:"(?:[^"\\]|\\.)*"|-?\d+): ')


def manifest(name: str = "digits", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def apply(cluster: ClusterAccess, namespace: str, job: dict[str, Any]) -> str:
    """Apply like a user; what kubectl says. Raises KubectlError if it is refused."""
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job)).stdout


def refusal(cluster: ClusterAccess, namespace: str, job: dict[str, Any]) -> str:
    """Apply what must be refused; what kubectl says, as ``worded``."""
    answer = cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job), check=False)
    assert answer.returncode != 0, f"accepted: {answer.stdout}"
    return worded(cluster, answer.stderr)


def worded(cluster: ClusterAccess, sentence: str) -> str:
    """A refusal so that it can be compared. The tests have the words of the default version, and newer
    servers must say the same; older ones quote a value's type in place of the value."""
    if _numbers(cluster.kubernetes) >= _numbers(default_kubernetes()):
        return sentence
    sentence = QUOTED.sub("Invalid value: ", sentence).replace("map[string]interface {}", "")
    return sentence.replace("may not be longer than", "may not be more than")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def get(cluster: ClusterAccess, namespace: str, name: str = "digits") -> dict[str, Any]:
    answer = cluster.kubectl("get", "-n", namespace, "ej", name, "-o", "json")
    job: dict[str, Any] = json.loads(answer.stdout)
    return job


def template(**changes: Any) -> dict[str, Any]:
    """A minimal template whose pod spec has these fields besides."""
    return {"spec": {"containers": [CONTAINER], **changes}}


def limited(memory: str | int, **metadata: Any) -> dict[str, Any]:
    """A template whose first container, of two, has this memory limit."""
    container = {**CONTAINER, "resources": {"limits": {"memory": memory}}}
    return {"metadata": metadata, "spec": {"containers": [container, {"name": "beside", "image": "x"}]}}


def labelled(**metadata: dict[str, str]) -> dict[str, Any]:
    """The template with such ``labels`` and ``annotations``."""
    return {"metadata": metadata, **TEMPLATE}


def ruled(*rules: dict[str, Any]) -> dict[str, Any]:
    """A job with these failure rules."""
    return manifest(template=TEMPLATE, failurePolicy={"rules": list(rules)})
