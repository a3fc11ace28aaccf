"""`python -m benchmarks.newcomer`: from a script to its first step, with `elasticjob run` and with kubectl.

On devcluster: the commands that a newcomer types, and the seconds of each until the script of a job of two
pods has printed its first step. Pods are processes here: no image is pulled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

import yaml

from benchmarks.markdown import number, table
from devcluster import crd
from devcluster.cluster import Cluster
from elasticjob_operator.act.injection import IMAGE_DIR
from elasticjob_operator.settings import HANDLER_IMAGE
from examples.demo import CRD, operator
from tests.dockerfile import ROOT, Build

_FIRST_STEP = "step 1"
_SCRIPT = f"""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
print("{_FIRST_STEP}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.newcomer", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each (default %(default)s)")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name, Cluster(nodes=2) as cluster:
        folder = Path(name)
        build = Build(ROOT / "docker" / "handler.Dockerfile", folder / "image")
        cluster.add_image(HANDLER_IMAGE, "/usr/bin", {IMAGE_DIR: build.home / "site"})
        crd.install(cluster, CRD)
        script = folder / "train.py"
        script.write_text(_SCRIPT)
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as where people work
        kubectl = str(cluster.kubectl_binary)
        with operator(cluster.kubeconfig):
            ours = [by_run(script, environment, f"run-{n}") for n in range(runs)]
            theirs = [by_kubectl(script, environment, kubectl, f"apply-{n}") for n in range(runs)]
    print(f"{date.today()}; medians of {runs}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    lines = len(manifest("mnist").splitlines())
    print(comparison([("elasticjob run", 0, ours), ("kubectl", lines, theirs)]))


def comparison(ways: list[tuple[str, int, list[dict[str, float]]]]) -> str:
    """The table: each way with the lines of its manifest and the seconds of its commands, run by run."""
    rows = []
    for way, lines, runs in ways:
        rows += [(way, f"`{command}`", number(median(one[command] for one in runs))) for command in runs[0]]
        count = f"{len(runs[0])} command{'' if len(runs[0]) == 1 else 's'}"
        written = f", and a manifest of {lines} lines" if lines else ""
        rows.append((way, f"{count}{written}", number(median(sum(one.values()) for one in runs))))
    return table(("way", "command", "seconds; of the last one, until the first step"), rows)


def by_run(script: Path, environment: dict[str, str], name: str) -> dict[str, float]:
    """Seconds by command."""
    program = str(Path(sys.executable).with_name("elasticjob"))
    words = [program, "run", str(script), "--image", "any", "--replicas", "2", "--name", name]
    return {"elasticjob run train.py --image IMAGE --replicas 2": until_first_step(words, environment)}


def by_kubectl(script: Path, environment: dict[str, str], kubectl: str, name: str) -> dict[str, float]:
    """Seconds by command; the time in which one writes the manifest is not in it."""
    took: dict[str, float] = {}

    def call(shown: str, *words: str, given: str = "") -> None:
        began = time.monotonic()
        subprocess.run(
            [kubectl, *words], env=environment, input=given, check=True, capture_output=True, text=True
        )
        took[shown] = took.get(shown, 0.0) + time.monotonic() - began

    job = f"elasticjob/{name}"
    call("kubectl create configmap", "create", "configmap", name, f"--from-file={script}")
    call("kubectl apply -f job.yaml", "apply", "-f", "-", given=manifest(name))
    call("kubectl wait", "wait", job, "--for=condition=Training", "--timeout=120s")
    words = [kubectl, "logs", "-f", f"{name}-0-0"]
    took["kubectl logs -f JOB-0-0"] = until_first_step(words, environment)
    return took


def manifest(name: str) -> str:
    """The manifest that a newcomer writes."""
    container = {
        "name": "train",
        "image": "any",
        "command": ["torchrun", "/code/train.py"],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    volumes = [{"name": "code", "configMap": {"name": name}}]
    spec = {"replicas": 2, "template": {"spec": {"containers": [container], "volumes": volumes}}}
    head = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}}
    return yaml.safe_dump({**head, "spec": spec})


def until_first_step(words: list[str], environment: dict[str, str]) -> float:
    """Seconds until the command prints the first step. Raises RuntimeError if it ends without that."""
    began = time.monotonic()
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        said = []
        took = None
        for line in process.stdout:
            said.append(line)
            if took is None and line.strip() == _FIRST_STEP:
                took = time.monotonic() - began
    if took is None:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{''.join(said)}")
    return took


if __name__ == "__main__":
    main()
