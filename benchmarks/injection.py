"""`python -m benchmarks.injection`: what is put into a pod that lacks the handler, and what that costs.

Size; the time that a torchrun takes to import it, beside an installed one (whose byte code is on disk; a
volume that is read-only and new in each pod has none); seconds from the request for a pod to the first
instruction of its training container, on devcluster, with `handlerSource: Injected` and `Image` in turns. Its
node agent starts a process where kubelet sets up a container: one more costs more on a real node, and the
pull of its image is in no figure here.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import markdown
from benchmarks.environment import environment
from benchmarks.markdown import document
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob_operator.act.injection import IMAGE_DIR, HandlerImage
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.plan.state.model import HandlerSource, Job, JobSpec
from tests.dockerfile import ROOT, Build

RESULTS = Path(__file__).parent / "results"
_IMAGE = "handler"
_NAMESPACE = "default"
_TIMEOUT_SECONDS = 60.0
_IMPORT = """
import sys, time
import torch.distributed.run
before = time.perf_counter()
import elasticjob.agent.create
print(time.perf_counter() - before)
assert elasticjob.agent.create.__file__.startswith(sys.argv[1]), elasticjob.agent.create.__file__
"""
"""All that a torchrun imports of ours, but for the entry point, once it has what it needs itself."""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.injection", description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="of each, in turns (default %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        site = Build(ROOT / "docker" / "handler.Dockerfile", Path(name)).home / "site"
        installed = Path(name, "installed")
        shutil.copytree(site, installed)
        compileall.compile_dir(installed, quiet=1)
        files = [path for path in site.rglob("*") if path.is_file()]
        figures: dict[str, Any] = {
            "environment": environment(None),
            "files": len(files),
            "kilobytes": round(sum(path.stat().st_size for path in files) / 1000),
            "import seconds": _in_turns(
                options.runs,
                {"Injected": lambda: _import_seconds(site), "Image": lambda: _import_seconds(installed)},
            ),
            "start seconds": _starts(options.runs, site, Path(name)),
        }
    (options.out / "injection.json").write_text(json.dumps(figures, indent=1) + "\n")
    (options.out / "injection.md").write_text(_table(figures))
    print(_table(figures))


def _in_turns(runs: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {what: [] for what in measures}
    for measure in measures.values():
        measure()  # the first time is cold
    for _ in range(runs):
        for what, measure in measures.items():
            found[what].append(round(measure(), 4))
    return found


def _import_seconds(folder: Path) -> float:
    answer = subprocess.run(
        [sys.executable, "-c", _IMPORT, str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(answer.stdout)


def _starts(runs: int, site: Path, folder: Path) -> dict[str, list[float]]:
    with Cluster(nodes=1) as cluster:
        cluster.add_image(_IMAGE, "/usr/bin", {IMAGE_DIR: site})
        account = ("-n", _NAMESPACE, "get", "serviceaccount", "default")
        wait_for(
            lambda: cluster.kubectl(*account, check=False).returncode == 0,
            _TIMEOUT_SECONDS,
            "the namespace has its service account",
        )
        count = iter(range(10_000))

        def start(handler: HandlerSource) -> float:
            stamp = folder / f"stamp-{next(count)}"
            return _start(cluster, handler, stamp)

        return _in_turns(runs, {one.value: lambda one=one: start(one) for one in HandlerSource})  # type: ignore[misc]


def _start(cluster: Cluster, handler: HandlerSource, stamp: Path) -> float:
    """Seconds from the request to the container's first instruction."""
    script = f"date +%s.%N > {stamp}.new && mv {stamp}.new {stamp}"
    container = {"name": "train", "image": "any", "command": ["sh", "-c", script]}
    template = {"spec": {"containers": [container], "serviceAccountName": "default"}}
    job = Job(_NAMESPACE, stamp.name, "uid", 1, JobSpec(template=template, handler_source=handler.value))
    pod = pod_of(job, 0, 0, HandlerImage(_IMAGE))
    del pod["metadata"]["ownerReferences"]  # there is no such job, and its pods would be collected
    path = f"/api/v1/namespaces/{_NAMESPACE}/pods"
    began = time.time()
    answer = cluster.api.request("POST", path, pod)
    assert answer.ok, answer
    wait_for(stamp.exists, _TIMEOUT_SECONDS, f"a pod with handler {handler.value} runs", interval=0.02)
    seconds = float(stamp.read_text()) - began
    cluster.kubectl("-n", _NAMESPACE, "delete", "pod", pod["metadata"]["name"])
    return seconds


def _table(figures: dict[str, Any]) -> str:
    rows = []
    for what in ("import seconds", "start seconds"):
        injected, image = (median(figures[what][handler.value]) for handler in HandlerSource)
        rows.append([what, f"{injected:.3f}", f"{image:.3f}", f"{injected - image:+.3f}"])
    facts = ", ".join(f"{key} {value}" for key, value in figures["environment"].items())
    return document(
        "What injecting the handler costs",
        f"{figures['files']} files, {figures['kilobytes']} kB. "
        f"Medians of {len(figures['start seconds']['Image'])} runs in turns; {facts}.",
        markdown.table(["", "Injected", "Image", "more"], rows),
    )


if __name__ == "__main__":
    main()
