"""A cluster whose nodes are played by processes of this machine."""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devcluster import commands
from devcluster.control_plane import ControlPlane
from devcluster.nodeagent.client import NodeAgentClient

_NODES_TIMEOUT_SECONDS = 60.0
# What the node agent gets to end its pods' processes when the cluster ends.
_NODE_AGENT_GRACE_SECONDS = 70.0


class Cluster(ControlPlane):
    """A control plane with nodes that the node agent plays."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        state_dir: Path | None = None,
        images: Mapping[str, str] | None = None,
        options: commands.Options | None = None,
    ) -> None:
        """Nothing is started yet.

        `state_dir` must not exist: it is made by `start` and removed at the end (default: a new temporary
        one). `images` maps the names of container images to the folders of programs that the node agent runs
        in their place, "*" standing for all others; without it that is this very process's for every image.
        """
        super().__init__(state_dir, options)
        self.node_names = node_names(nodes)
        self._images: dict[str, Any] = dict(images or {"*": str(Path(sys.executable).parent)})
        self._nodes: NodeAgentClient | None = None

    @property
    def nodes(self) -> NodeAgentClient:
        """The nodes, to kill, freeze and cut off. Raises RuntimeError in a cluster without nodes."""
        if self._nodes is None:
            raise RuntimeError("this cluster has no nodes")
        return self._nodes

    def add_image(self, name: str, path: str | Path, mounts: Mapping[str, str | Path] | None = None) -> None:
        """Let a folder of programs stand for an image, from the next container on; `mounts` are further
        folders of this machine, by the place where the image has them."""
        where = {target: str(source) for target, source in (mounts or {}).items()}
        self._images[name] = {"path": str(path), "mounts": where}
        self._write_images()

    def remove_image(self, name: str) -> None:
        """Let an image be none that can be pulled, until it is added again."""
        self._images[name] = None
        self._write_images()

    def _write_images(self) -> Path:
        file = self.state_dir / "images.json"
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(self._images))
        fresh.replace(file)
        return file

    def _start_parts(self, binary: Path) -> None:
        self._start_control_plane(self._lay_out(binary))
        if self.node_names:
            self._start_nodes()

    def _start_nodes(self) -> None:
        images = self._write_images()
        control = self.state_dir / "nodes.sock"
        arguments = [
            sys.executable,
            "-m",
            "devcluster.nodeagent",
            f"--kubeconfig={self.kubeconfig}",
            f"--nodes={','.join(self.node_names)}",
            f"--state-dir={self.nodes_dir}",
            f"--images={images}",
            f"--control={control}",
            *(["--netns"] if self._options.netns else []),
        ]
        if self._options.token_seconds is not None:
            arguments.append(f"--token-seconds={self._options.token_seconds}")
        agent = self._add(
            "nodeagent",
            arguments,
            lambda _: self._nodes_ready(),
            ready_timeout=_NODES_TIMEOUT_SECONDS,
            grace=_NODE_AGENT_GRACE_SECONDS,
        )
        agent.start()
        self._nodes = NodeAgentClient(control)


def node_names(count: int) -> list[str]:
    """node-a, node-b ..."""
    return [f"node-{_letters(index)}" for index in range(count)]


def _letters(index: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    head, tail = divmod(index, 26)
    return (_letters(head - 1) if head else "") + string.ascii_lowercase[tail]
