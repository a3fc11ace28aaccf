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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import distribution
from pathlib import Path

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob_operator.act.injection import IMAGE_DIR
from elasticjob_operator.settings import HANDLER_IMAGE, LEASE_NAME
from examples.demo import CRD, ROOT, Failure, say

NAMESPACE = "elasticjob-system"
CLAIM = "checkpoints"
NODES = 3
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
            operator = stack.enter_context(running_operator(cluster, folder))
            tell(cluster, folder)
            operator.wait()
        raise AssertionError("it is left by an exception")
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


@contextmanager
def running_operator(cluster: Cluster, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The operator as a process of its own, which leads. Raises Failure when it ends by itself, and
    TimeoutError if it does not lead."""
    command = [
        sys.executable,
        "-m",
        "elasticjob_operator",
        "--leader-elect",
        f"--leader-elect-resource-namespace={NAMESPACE}",
    ]
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C is for us
        )
    try:
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"
        wait_for(
            lambda: process.poll() is not None or cluster.read(lease).get("spec", {}).get("holderIdentity"),
            60.0,
            "the operator leads",
        )
        if process.poll() is None:
            yield process
        raise Failure("the operator has ended:\n" + (folder / "operator.log").read_text()[-3000:])
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
