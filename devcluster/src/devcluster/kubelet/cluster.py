"""A cluster whose nodes have kubelets, and the registry from which they pull."""

from __future__ import annotations

import secrets
from pathlib import Path

from devcluster import commands, kubeconfig
from devcluster.build import NODE_BINARY, default_kubernetes, ensure_node_built
from devcluster.cluster import node_names
from devcluster.control_plane import ControlPlane
from devcluster.kubelet import cgroups, config, registry, requirements
from devcluster.kubelet.images import Images
from devcluster.kubelet.node import Node
from devcluster.kubelet.switch import Subnet, Switch, has_own_network
from devcluster.wait import wait_for

_PROXY = "system:kube-proxy"
_NODES_TIMEOUT_SECONDS = 120.0


class KubeletCluster(ControlPlane):
    """A control plane with nodes that kubelets run, as in production: no time is shorter than there.

    Needs root and the programs of `requirements`. Images come from `registry`, whatever registry their name
    has: a machine without a way out pulls `docker.io/library/busybox:1.37` from there.
    """

    def __init__(
        self, nodes: int = 2, *, state_dir: Path | None = None, options: commands.Options | None = None
    ) -> None:
        """Nothing is started yet. `state_dir` as for `Cluster`.

        Raises MissingError if this machine can't have such nodes, ValueError if no kubelet of this version
        is built.
        """
        requirements.check()
        super().__init__(state_dir, options)
        if self.kubernetes != default_kubernetes():
            only = f"only nodes of Kubernetes {default_kubernetes()} can have a kubelet"
            raise ValueError(f"{only}, and {self.kubernetes} was chosen")
        self.node_names = node_names(nodes)
        self.nodes: dict[str, Node] = {}
        """The nodes by name, to kill, to cut off and to start again."""
        for name in self.node_names:
            self._tokens[_user(name)] = secrets.token_urlsafe(24)
            self._groups[_user(name)] = "system:nodes"
        self._tokens[_PROXY] = secrets.token_urlsafe(24)
        self._subnet: Subnet | None = None

    @property
    def pod_logs(self) -> list[Path]:
        """Each node's own."""
        return [node.plan.logs for node in self.nodes.values()]

    @property
    def images(self) -> Images:
        """Builds images and pushes them where the nodes pull."""
        return self._images

    @property
    def registry(self) -> str:
        """HOST:PORT of the registry, to push to."""
        return f"{self._host}:{registry.PORT}"

    def _start_parts(self, binary: Path) -> None:
        node_binary = ensure_node_built() / NODE_BINARY
        cgroups.remove_remains()
        self._subnet = subnet = Subnet()
        self._host = subnet.host
        switch = self._start_switch(subnet)
        self._start_control_plane(self._lay_out(binary))
        self._start_registry()
        self._images = Images(self.registry, self.state_dir / "images")
        self._images.push_basic()
        for index, name in enumerate(self.node_names):
            self._start_node(index, name, subnet, node_binary, switch)
        wait_for(self._nodes_ready, _NODES_TIMEOUT_SECONDS, "all nodes are Ready")

    def _end(self) -> None:
        super()._end()
        if self._subnet is not None:
            self._subnet.release()
            self._subnet = None

    def _kubelet_client(self) -> tuple[Path, Path]:
        return self._authority.issue_client("kube-apiserver-kubelet-client", "system:masters")

    def _start_switch(self, subnet: Subnet) -> Switch:
        holder = self._add("switch", list(Switch.HOLDER), has_own_network)
        switch = Switch(subnet, holder)
        switch.start()
        return switch

    def _start_registry(self) -> None:
        folder = self.state_dir / "registry"
        file = registry.write(folder, self.registry)
        self._add("registry", registry.command(file), lambda _: registry.answers(self.registry)).start()

    def _start_node(self, index: int, name: str, subnet: Subnet, binary: Path, switch: Switch) -> None:
        folder = self.nodes_dir / name
        folder.mkdir(parents=True)
        plan = config.Plan(
            name=name,
            folder=folder,
            address=subnet.node(index),
            pods=subnet.pods(index),
            cluster=subnet.cidr,
            registry=self.registry,
            cni_folder=requirements.cni_folder(),
            ca_file=self.ca_file,
        )
        for file, user in (("kubelet", _user(name)), ("proxy", _PROXY)):
            path = folder / f"{file}.kubeconfig"
            kubeconfig.write(path, self.server, self.ca_file, self._tokens[user])
        assert self._supervisor is not None
        node = Node(index, len(self.node_names), plan, binary, self._supervisor, switch, self.logs_dir)
        self.nodes[name] = node
        node.start()


def _user(node: str) -> str:
    return f"system:node:{node}"
