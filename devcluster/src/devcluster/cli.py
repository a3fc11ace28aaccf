"""The command line: a named cluster that stays up until it is told to go.

A cluster belongs to one process, here the one that runs `up`: in the foreground it is the user's, and with
--detach a background copy. `down` ends that process by its id. What the other commands need to know is in the
cluster's state folder, in `cluster.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from devcluster.build import (
    KUBECTL,
    KUBERNETES_VARIABLE,
    default_kubernetes,
    ensure_built,
    kubernetes_versions,
)
from devcluster.cluster import Cluster
from devcluster.commands import AUTOSCALING, DISRUPTION, Options
from devcluster.control_plane import ControlPlane
from devcluster.paths import named_cluster_dir
from devcluster.supervisor import is_supervised
from devcluster.wait import wait_for

_DOWN_TIMEOUT_SECONDS = 60.0
# Kubelets and containerds take memory; two show all that one and another can.
_KUBELETS = 2
# A process id counts as the recorded process if it was created at the same time, to clock precision.
_SAME_CREATION_SECONDS = 1.0

_name_option = click.option("--name", default="dev", show_default=True, help="The cluster's name.")
_kubernetes_option = click.option(
    "--kubernetes",
    type=click.Choice(kubernetes_versions()),
    default=default_kubernetes(),
    show_default=True,
    envvar=KUBERNETES_VARIABLE,
    show_envvar=True,
    help="The version of the control plane and of kubectl.",
)


@dataclass(frozen=True)
class _Nodes:
    """What `--nodes` says."""

    count: int
    kubelet: bool = False


def _nodes(context: click.Context, parameter: click.Parameter, value: str) -> _Nodes:
    """What it means. Raises BadParameter if it means nothing."""
    kind, _, number = value.rpartition(":")
    if number == "kubelet" and not kind:
        return _Nodes(_KUBELETS, kubelet=True)
    if not number.isdecimal() or kind not in ("", "kubelet"):
        problem = f"{value!r} is neither a number nor kubelet nor kubelet:NUMBER"
        raise click.BadParameter(problem, context, parameter)
    if kind and not int(number):
        raise click.BadParameter("kubelet:0 is no node: give a number from 1", context, parameter)
    return _Nodes(int(number), kubelet=bool(kind))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A real Kubernetes control plane, with nodes that are processes of this machine."""


@main.command()
@_kubernetes_option
def build(kubernetes: str) -> None:
    """Build the control plane if it is not in the cache, and say where it is."""
    click.echo(ensure_built(kubernetes))


@main.command()
@click.option("--install", is_flag=True, help="Install what is missing, by apt-get.")
def packages(install: bool) -> None:
    """Say which packages are missing for nodes with a kubelet."""
    from devcluster.kubelet import requirements

    if install:
        try:
            requirements.install()
        except requirements.MissingError as error:
            raise click.ClickException(str(error)) from None
    missing = requirements.missing_packages()
    click.echo(requirements.install_command(missing) if missing else "nothing is missing")


@main.command()
@_name_option
@click.option(
    "--nodes",
    default="3",
    show_default=True,
    metavar="NUMBER|kubelet[:NUMBER]",
    callback=_nodes,
    help="How many nodes; kubelet (or kubelet:3): that each run a kubelet, two or as many.",
)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="NAME",
    help=f"One more controller, for example {DISRUPTION} or {AUTOSCALING}.",
)
@_kubernetes_option
@click.option("--detach", is_flag=True, help="Return when the cluster is ready, and leave it running.")
def up(name: str, nodes: _Nodes, controllers: tuple[str, ...], kubernetes: str, detach: bool) -> None:
    """Start a cluster; without --detach it ends with Ctrl-C."""
    state_dir = named_cluster_dir(name)
    if _owner(state_dir) is not None:
        raise click.ClickException(f"the cluster {name!r} is up already: {state_dir}")
    options = Options(kubernetes=kubernetes, further_controllers=controllers)
    cluster = _new_cluster(nodes, state_dir, options)
    _remove_remains(state_dir)
    ensure_built(kubernetes)
    if detach:
        _in_background(lambda ready: _serve(name, state_dir, cluster, ready))
    else:
        _serve(name, state_dir, cluster, lambda: click.echo("Ctrl-C ends it."))


@main.command()
@_name_option
def down(name: str) -> None:
    """End a cluster and remove all of it."""
    state_dir = named_cluster_dir(name)
    owner = _owner(state_dir)
    if owner is None:
        raise click.ClickException(f"no cluster named {name!r} is up")
    owner.terminate()
    wait_for(
        lambda: not state_dir.exists(),
        _DOWN_TIMEOUT_SECONDS,
        f"process {owner.pid} has ended its cluster and removed {state_dir}",
    )
    click.echo(f"the cluster {name!r} is gone")


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, args: tuple[str, ...]) -> None:
    """Run kubectl against a cluster (--name comes before kubectl's own arguments)."""
    facts = _facts(name)
    environment = {
        **os.environ,
        "KUBECONFIG": facts["kubeconfig"],
        "KUBECACHEDIR": str(named_cluster_dir(name) / "kubectl-cache"),
    }
    os.execve(facts["kubectl"], [KUBECTL, *args], environment)


@main.command()
@_name_option
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's namespace.")
@click.option("-c", "--container", help="The container; not needed if the pod has only one.")
@click.argument("pod")
def logs(name: str, namespace: str, container: str | None, pod: str) -> None:
    """Print the logs of a pod, of all its runs, also after it is gone."""
    roots = [Path(folder) for folder in _facts(name)["pod_logs"]]
    pattern = f"{namespace}_{pod}_*/{container or '*'}/*.log"
    files = sorted((file for root in roots for file in root.glob(pattern)), key=_age)
    if not files:
        raise click.ClickException(f"no logs of {namespace}/{pod} below {', '.join(map(str, roots))}")
    containers = sorted({file.parent.name for file in files})
    if len(containers) > 1:
        raise click.ClickException(f"{pod} has several containers, choose with -c: {', '.join(containers)}")
    for file in files:
        if len(files) > 1:
            click.echo(f"==> {'/'.join(file.parts[-3:])} <==", err=True)
        sys.stdout.flush()
        with file.open("rb") as content:
            shutil.copyfileobj(content, sys.stdout.buffer)


def _serve(name: str, state_dir: Path, cluster: ControlPlane, ready: Callable[[], None]) -> None:
    """Own a cluster until SIGTERM or Ctrl-C; `ready` is called when it is up."""
    # Set before the start, so that a cluster that is still coming up can be ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), cluster:
        facts = {
            "pid": os.getpid(),
            "created": psutil.Process().create_time(),
            "server": cluster.server,
            "kubeconfig": str(cluster.kubeconfig),
            "kubectl": str(cluster.kubectl_binary),
            "pod_logs": [str(folder) for folder in cluster.pod_logs],
        }
        # Renamed into place: a reader sees all of it or nothing.
        written = state_dir / "cluster.json.new"
        written.write_text(json.dumps(facts))
        written.rename(state_dir / "cluster.json")
        click.echo(f"The cluster {name!r} is up after {time.monotonic() - began:.1f} s: {cluster.server}")
        click.echo(f"Nodes Ready: {', '.join(cluster.node_names) or 'none'}")
        click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
        ready()
        while True:
            signal.pause()


def _new_cluster(nodes: _Nodes, state_dir: Path, options: Options) -> ControlPlane:
    if not nodes.kubelet:
        return Cluster(nodes.count, state_dir=state_dir, options=options)
    # Not every user has what it imports and needs.
    from devcluster.kubelet.cluster import KubeletCluster
    from devcluster.kubelet.requirements import MissingError

    try:
        return KubeletCluster(nodes.count, state_dir=state_dir, options=options)
    except (MissingError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _in_background(serve: Callable[[Callable[[], None]], None]) -> None:
    """Run `serve` in a background process; return when it calls its argument, fail if it ends before."""
    waiting, telling = os.pipe()
    if os.fork() == 0:
        os.close(waiting)
        os.setsid()

        def ready() -> None:
            sys.stdout.flush()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            os.close(nowhere)
            os.write(telling, b"1")
            os.close(telling)

        serve(ready)
        sys.exit(0)
    os.close(telling)
    if not os.read(waiting, 1):
        raise click.ClickException("the cluster did not come up")


def _remove_remains(state_dir: Path) -> None:
    """Remove what a machine that went down left; let a supervisor that is cleaning up finish first."""
    wait_for(
        lambda: not is_supervised(state_dir),
        _DOWN_TIMEOUT_SECONDS,
        f"the cluster that was in {state_dir} has ended",
    )
    shutil.rmtree(state_dir, ignore_errors=True)


def _facts(name: str) -> dict[str, Any]:
    """What `up` recorded. Raises ClickException if the cluster is not up."""
    state_dir = named_cluster_dir(name)
    if _owner(state_dir) is None:
        raise click.ClickException(f"no cluster named {name!r} is up: start it by `up --name {name}`")
    return _read(state_dir)


def _owner(state_dir: Path) -> psutil.Process | None:
    """The process that owns the cluster in this folder; None if it is gone or never was."""
    try:
        facts = _read(state_dir)
        process = psutil.Process(facts["pid"])
        same = abs(process.create_time() - facts["created"]) < _SAME_CREATION_SECONDS
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    return process if same else None


def _read(state_dir: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((state_dir / "cluster.json").read_text())
    return facts


def _age(file: Path) -> float:
    return file.stat().st_mtime
