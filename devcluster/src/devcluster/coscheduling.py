"""The scheduler of scheduler-plugins with its plugin Coscheduling, as one more process of a cluster.

It runs beside Kubernetes' own, as scheduler-plugins' chart installs it, under the name `SCHEDULER`: pods name
it. Its resource definition is the one of the module. Its controller, which writes the status of PodGroups
alone, is left out.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from devcluster import crd
from devcluster.component import Component
from devcluster.control_plane import ControlPlane
from devcluster.go_tool import GoModule, module_source
from devcluster.ports import listens

VERSION = "v0.35.4-devel"
SCHEDULER = "scheduler-plugins-scheduler"

MODULE = "sigs.k8s.io/scheduler-plugins"
DEFINITION = "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"
"""The resource definition PodGroup, in the module."""
_SCHEDULER = GoModule(
    "scheduler-plugins", MODULE, VERSION, programs=("cmd/scheduler",), minutes="some 10 minutes"
)


def ensure_scheduler() -> Path:
    """The binary `scheduler`; builds it if it isn't cached. Raises RuntimeError if the build fails."""
    return _SCHEDULER.ensure() / "scheduler"


def start(cluster: ControlPlane) -> Component:
    """Install the definition, and start the scheduler; it ends with the cluster.

    Builds the binary first if it isn't cached (minutes). Raises ComponentFailedError if it does not get
    ready.
    """
    binary = ensure_scheduler()
    crd.install(cluster, module_source(MODULE, VERSION) / DEFINITION)
    folder = cluster.state_dir / "coscheduling"
    folder.mkdir()
    config, port = folder / "config.yaml", cluster.claim_port()
    config.write_text(yaml.safe_dump(_configuration(cluster.kubeconfig)))
    component = cluster.add_process(
        "coscheduling",
        [
            str(binary),
            f"--config={config}",
            f"--authentication-kubeconfig={cluster.kubeconfig}",
            f"--authorization-kubeconfig={cluster.kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}",
        ],
        lambda pid: listens(pid, port),
        env={"GOMAXPROCS": "2"},
    )
    component.start()
    return component


def _configuration(kubeconfig: Path) -> dict[str, object]:
    """That of scheduler-plugins' own folder `manifests/coscheduling`, with another name of the scheduler."""
    plugins = {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    }
    arguments = {"permitWaitingTimeSeconds": 10}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "plugins": plugins,
                "pluginConfig": [{"name": "Coscheduling", "args": arguments}],
            }
        ],
    }
