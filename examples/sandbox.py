"""``make sandbox``: a cluster on this machine to try scripts on, with ElasticJob installed, until Ctrl-C.

devcluster's control plane, the operator as a process beside it, and the handler as it is injected into pods.
Pods are processes of this machine, and every image stands for the Python that runs this: nothing is pulled.
What it makes is in one folder (default: build/sandbox), which is gone at the end; ``FOLDER/env`` is for a
shell.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.metadata import distribution
from pathlib import Path
from typing import NoReturn

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.control_plane import ComponentName
from devcluster.wait import wait_for
from elasticjob_operator.act.injection import IMAGE_DIR
from elasticjob_operator.settings import HANDLER_IMAGE, LEASE_NAME
from examples.demo import CRD, ROOT, Failure, end, say

NAMESPACE = "elasticjob-system"
CLAIM = "checkpoints"
NODES = 3
CONTROL_PLANE: tuple[ComponentName, ...] = ("etcd", "apiserver", "controller-manager", "scheduler")
POLL_SECONDS = 0.5
_LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": LEASE_NAME, "labels": {"app.kubernetes.io/name": "elasticjob"}},
}
_ENV = """\
# source this file: it leads to the sandbox until that ends
export KUBECONFIG={kubeconfig}
export PATH={programs}:"$PATH"
"""
_KUBECTL = """\
#!{python}
from examples.sandbox_kubectl import main

main({binary!r}, {control!r})
"""


def main() -> int:
    """Serve until Ctrl-C or SIGTERM. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "sandbox", help="where its files are")
    folder: Path = parser.parse_args().folder.absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        print(f"{folder} is there: another sandbox runs, or has left it; then remove it", file=sys.stderr)
        return 1
    try:
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(nodes=NODES))
            install(cluster, folder)
            operator = Operator(cluster, folder / "operator.log")
            stack.callback(operator.stop)
            operator.start()
            tell(cluster, folder)
            keep_running(cluster, operator)
    except Failure as failure:
        print(f"\n{failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 0
    finally:
        say("ending the sandbox")
        shutil.rmtree(folder, ignore_errors=True)


def install(cluster: Cluster, folder: Path) -> None:
    """What the chart installs, as far as a sandbox needs it."""
    crd.install(cluster, CRD)
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("-n", NAMESPACE, "create", "-f", "-", input=json.dumps(_LEASE))
    cluster.add_image(HANDLER_IMAGE, "/usr/bin", {IMAGE_DIR: handler(folder)})
    programs = folder / "bin"
    programs.mkdir()
    kubectl = programs / "kubectl"
    text = _KUBECTL.format(
        python=sys.executable,
        binary=str(cluster.kubectl_binary),
        control=str(cluster.state_dir / "nodes.sock"),
    )
    kubectl.write_text(text)
    kubectl.chmod(0o755)
    for name in ("elasticjob", "kubectl-ej", "kubectl_complete-ej"):
        (programs / name).symlink_to(Path(sys.executable).with_name(name))
    path = ":".join(shlex.quote(str(one)) for one in (programs,))
    (folder / "env").write_text(_ENV.format(kubeconfig=shlex.quote(str(cluster.kubeconfig)), programs=path))


def handler(folder: Path) -> Path:
    """What the handler's image has: the package, and the metadata by which torch finds it."""
    site = folder / "handler"
    shutil.copytree(
        ROOT / "handler" / "elasticjob", site / "elasticjob", ignore=shutil.ignore_patterns("__pycache__")
    )
    metadata = Path(str(distribution("elasticjob").locate_file("")))
    name = f"elasticjob-{distribution('elasticjob').version}.dist-info"
    (site / name).mkdir()
    for file in ("METADATA", "entry_points.txt"):
        shutil.copy(metadata / name / file, site / name)
    return site


class Operator:
    """The operator as a process of its own."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        self._cluster = cluster
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it and wait until it leads. Raises Failure if it ends before, and TimeoutError."""
        before = self._leader()
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "elasticjob_operator",
                    "--leader-elect",
                    f"--leader-elect-resource-namespace={NAMESPACE}",
                ],
                env={**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is for us
            )
        wait_for(
            lambda: process.poll() is not None or self._leader() not in ("", before),
            60.0,
            "the operator leads",
        )
        if process.poll() is not None:
            raise Failure("the operator has ended:\n" + self._log.read_text()[-3000:])

    def stop(self) -> None:
        """End it, if it was started."""
        if self._process is not None:
            end(self._process)

    def _leader(self) -> str:
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"
        return str(self._cluster.read(lease).get("spec", {}).get("holderIdentity") or "")


def keep_running(cluster: Cluster, operator: Operator) -> NoReturn:
    """Start again what has ended, as the kubelet of a real cluster does. Raises Failure if an operator ends
    before it leads."""
    while True:
        time.sleep(POLL_SECONDS)
        for name in CONTROL_PLANE:
            component = cluster.component(name)
            if not component.running:
                say(f"{name} has ended: it is started again")
                component.start()
                say(f"{name} runs again")
        if operator.exit_code is not None:
            say(f"the operator has ended with {operator.exit_code}: it is started again")
            operator.start()
            say("the operator runs again")


def tell(cluster: Cluster, folder: Path) -> None:
    """What its user can do."""
    here = os.path.relpath(folder)
    shown = here if not here.startswith("..") else str(folder)
    say(f"the sandbox is up, with nodes {', '.join(cluster.node_names)}; in another terminal:")
    print(
        f"""
  source {shown}/env
  elasticjob doctor
  elasticjob run YOUR_SCRIPT.py --image any --replicas 2 --name mine
  elasticjob status mine; elasticjob stacks mine; elasticjob exec mine -- ps

Pods are processes of this machine, and every image is {Path(sys.executable).parent.parent}.
The operator's log is {shown}/operator.log. Ctrl-C ends the sandbox, and all that runs in it.""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
