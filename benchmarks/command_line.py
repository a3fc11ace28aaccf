"""`python -m benchmarks.command_line`: how soon the command line says something, beside kubectl.

A real API server with one job of two members. Each command is a process of its own; its time is that from its
start to the first byte that it writes. kubectl and `elasticjob` take turns. Python keeps what it has
compiled, as it does where people work, whatever PYTHONDONTWRITEBYTECODE says here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.k8s import ControlPlane
from benchmarks.markdown import number, table

_NAMESPACE = "bench"
_JOB = "mnist"
_PAIRS = (
    (("kubectl", "get", "elasticjobs"), ("elasticjob", "list")),
    (("kubectl", "describe", "elasticjob", _JOB), ("elasticjob", "status", _JOB)),
    (("kubectl", "get", "events"), ("elasticjob", "events", _JOB)),
    (("kubectl", "scale", "--help"), ("elasticjob", "scale", "--help")),
)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command_line", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with ControlPlane() as plane:
        _create(plane)
        environment = {
            **os.environ,
            "KUBECONFIG": str(plane.cluster.kubeconfig),
            "KUBECACHEDIR": str(plane.service_accounts / "kubectl-cache"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        programs = {
            "kubectl": plane.cluster.kubectl_binary,
            "elasticjob": Path(sys.executable).with_name("elasticjob"),
        }
        rows = []
        for pair in _PAIRS:
            commands = [[str(programs[words[0]]), *words[1:]] for words in pair]
            if "--help" not in pair[0]:
                commands = [[*words, f"--namespace={_NAMESPACE}"] for words in commands]
            for words in commands:
                first_byte(words, environment)  # kubectl's cache of the API's resources, Python's of modules
            times: list[list[float]] = [[], []]
            for _ in range(runs):
                for words, mine in zip(commands, times, strict=True):
                    mine.append(first_byte(words, environment))
            theirs, ours = (statistics.median(mine) for mine in times)
            rows.append(
                (" ".join(pair[0]), number(theirs), " ".join(pair[1]), number(ours), f"{ours / theirs:.1f}")
            )
    print(f"Seconds to the first byte, medians of {runs}; load {os.getloadavg()[0]:.1f}\n")
    print(table(("kubectl", "s", "elasticjob", "s", "ratio"), rows))


def first_byte(words: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds from the start of a process to its first output. Raises RuntimeError if it says nothing."""
    began = time.monotonic()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdout
        first = process.stdout.read(1)
        took = time.monotonic() - began
        rest = process.stdout.read()
    if not first or process.returncode:
        said = (first + rest).decode(errors="replace")
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}: {said}")
    return took


def _create(plane: ControlPlane) -> None:
    """A job whose pods wait for a node."""
    container = {"name": "train", "image": "none", "command": ["torchrun", "train.py"]}
    plane.api.request(
        "POST",
        f"/apis/elasticjob.dev/v1alpha1/namespaces/{_NAMESPACE}/elasticjobs",
        {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": _JOB},
            "spec": {
                "replicas": 2,
                "template": {"spec": {"schedulerName": "none", "containers": [container]}},
            },
        },
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{_NAMESPACE}/elasticjobs/{_JOB}"
        if plane.api.request("GET", path).json().get("status", {}).get("conditions"):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the operator has not looked at {_JOB} within a minute: {plane.operator_log()}")


if __name__ == "__main__":
    main()
