"""The files of a node: what its containerd, kubelet and kube-proxy are told, and why.

Pure: from where things are (`Plan`) to text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DISK = Path("/run/disk")
"""The node's folder as its programs see it: sockets below have names of a hundred characters at most."""
DOCKER_HUB = "docker.io"
SANDBOX_IMAGE = "pause:1"
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
"""In the node's file system."""
KUBELET_HEALTH_PORT = 10248
PROXY_HEALTH_PORT = 10256

_LOGS = "logs"


@dataclass(frozen=True)
class Plan:
    """Where the parts of one node are, and what it is called."""

    name: str
    folder: Path
    """What is on its disk."""
    address: str
    pods: str
    """The addresses of its pods, as a prefix."""
    cluster: str
    """Those of all nodes and pods."""
    registry: str
    """HOST:PORT of the cluster's registry."""
    cni_folder: Path
    ca_file: Path

    @property
    def logs(self) -> Path:
        """The logs of its pods."""
        return self.folder / _LOGS


def write(plan: Plan, kubelet: Mapping[str, Any]) -> None:
    """Write all files; `kubelet` has further fields of the kubelet's configuration, or other values."""
    files = {
        "containerd.toml": containerd(plan),
        "kubelet.yaml": yaml.safe_dump({**kubelet_configuration(plan), **kubelet}, sort_keys=False),
        "network/10-pods.conflist": json.dumps(network(plan), indent=2),
        # No name server: a cluster's own would have to be built. A lookup is refused at once. (Of an empty
        # file containerd makes this machine's, whose server pods can't reach: 10 s of torch's in each round.)
        "resolv.conf": "nameserver 127.0.0.1\n",
        # As on any machine: pods on its network look up the name that they have there.
        "hosts": f"127.0.0.1 localhost\n{plan.address} {plan.name}\n",
        f"registries/{plan.registry}/hosts.toml": registry_hosts(plan),
        f"registries/{DOCKER_HUB}/hosts.toml": registry_hosts(plan),
    }
    for name, text in files.items():
        file = plan.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def containerd(plan: Plan) -> str:
    """containerd's configuration, in the version that 1.6 and 2 both read."""
    return f"""\
version = 2
root = "{DISK}/containerd"
# Snapshotters for what a machine may not have; each would be an error in the log.
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", \
"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{plan.registry}/{SANDBOX_IMAGE}"
  # Without CAP_SYS_RESOURCE, as in a container, no process can be made less likely to be killed.
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{DISK}/registries"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plan.cni_folder}"
  conf_dir = "{DISK}/network"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  # What is unpacked is not kept packed, too.
  discard_unpacked_layers = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def registry_hosts(plan: Plan) -> str:
    """Where images are pulled from, whatever registry their name has: the cluster's, without TLS."""
    return f"""\
server = "http://{plan.registry}"

[host."http://{plan.registry}"]
  capabilities = ["pull", "resolve"]
"""


def network(plan: Plan) -> dict[str, Any]:
    """Pods' network: each has a cable to its node, which forwards."""
    # Addresses that are taken are forgotten with the pods that had them, when the machine is switched off.
    pool = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": plan.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": pool}],
    }


def kubelet_configuration(plan: Plan) -> dict[str, Any]:
    """The kubelet's configuration: Kubernetes' defaults, but for what this machine needs."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": plan.address,
        "healthzBindAddress": plan.address,
        "healthzPort": KUBELET_HEALTH_PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plan.ca_file)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "podLogsDir": str(DISK / _LOGS),
        "volumePluginDir": str(DISK / "volume-plugins"),
        "resolvConf": str(DISK / "resolv.conf"),
        "clusterDomain": "cluster.local",
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,  # less needs CAP_SYS_RESOURCE
        # The disk is this machine's, and so is most of what fills it.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
    }


def kubelet_command(plan: Plan, binary: Path) -> list[str]:
    """kubelet, in its node."""
    return [
        str(binary),
        "kubelet",
        f"--config={DISK / 'kubelet.yaml'}",
        f"--kubeconfig={DISK / 'kubelet.kubeconfig'}",
        f"--hostname-override={plan.name}",
        f"--node-ip={plan.address}",
        f"--root-dir={DISK / 'kubelet'}",
        f"--cert-dir={DISK / 'kubelet-pki'}",
    ]


def proxy_command(plan: Plan, binary: Path) -> list[str]:
    """kube-proxy, in its node: without it no pod reaches the API server at the Service's address."""
    return [
        str(binary),
        "kube-proxy",
        f"--kubeconfig={DISK / 'proxy.kubeconfig'}",
        f"--hostname-override={plan.name}",
        "--proxy-mode=nftables",
        f"--cluster-cidr={plan.cluster}",
        f"--healthz-bind-address={plan.address}:{PROXY_HEALTH_PORT}",
        # The kernel's table of connections is one for all network namespaces: its size is not a node's.
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]


def containerd_command() -> list[str]:
    """containerd, in its node."""
    return ["containerd", f"--config={DISK / 'containerd.toml'}"]
