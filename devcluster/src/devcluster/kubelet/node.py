"""One node: its power, its cable, and the three programs that make it a node."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devcluster.api import ApiClient
from devcluster.component import Component, ParentClient, SupervisorClient
from devcluster.kubelet import cgroups, config, init, memory
from devcluster.kubelet.switch import Switch
from devcluster.wait import wait_for

_OFF_SECONDS = 30.0
# What a kubelet ends with that asks containerd between its socket and the start of its CRI.
_NO_CRI_YET = "server is not initialized yet"


class Node:
    """A node of a cluster; its faults are those of a machine and of its programs.

    `kubelet`, `containerd` and `kube_proxy` are to be killed, stopped, frozen and started again; what
    runs in containers is not theirs and goes on without them.
    """

    kubelet: Component
    containerd: Component
    kube_proxy: Component

    def __init__(
        self,
        index: int,
        nodes: int,
        plan: config.Plan,
        binary: Path,
        supervisor: SupervisorClient,
        switch: Switch,
        logs_dir: Path,
    ) -> None:
        """It is off. `index` of `nodes` is its place at the switch; `binary` has kubelet and kube-proxy."""
        self.name = plan.name
        self.address = plan.address
        self.plan = plan
        self._index, self._nodes = index, nodes
        self._binary = binary
        self._supervisor = supervisor
        self._switch = switch
        self._logs_dir = logs_dir
        self._kubelet_fields: dict[str, Any] = {}
        self._groups_name = cgroups.new_name(plan.name)
        self._groups = cgroups.NodeGroups(self._groups_name)
        self._machine = Component(
            plan.name,
            supervisor,
            [
                sys.executable,
                "-m",
                "devcluster.kubelet.init",
                f"--name={plan.name}",
                f"--groups={self._groups_name}",
                f"--folder={plan.folder}",
            ],
            logs_dir / f"{plan.name}.log",
            lambda _: self._connects(init.SOCKET, socket.SOCK_SEQPACKET),
        )

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return self._machine.running

    def start(self) -> None:
        """Switch it on. Its disk is as it was; what was in memory, all containers included, is lost.

        Returns when its programs run; the node is Ready a little later.
        """
        if not any(group.exists() for group in self._groups.folders):
            self._supervisor.remove_at_end(self._groups.folders)
            self._groups.make()
        config.write(self.plan, self._kubelet_fields)
        (self.plan.folder / init.PID_FILE).unlink(missing_ok=True)
        self._machine.start()
        self._switch.connect(self._index, self.pid, self._nodes)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.connect(self._inside(init.SOCKET))
        parent = ParentClient(control, self.name)
        self.containerd = self._program(
            parent,
            "containerd",
            config.containerd_command(),
            lambda _: self._connects(config.CONTAINERD_SOCKET, socket.SOCK_STREAM),
        )
        self.kube_proxy = self._program(
            parent,
            "kube-proxy",
            config.proxy_command(self.plan, self._binary),
            self._is_healthy(config.PROXY_HEALTH_PORT),
        )
        self.kubelet = self._program(
            parent,
            "kubelet",
            config.kubelet_command(self.plan, self._binary),
            self._is_healthy(config.KUBELET_HEALTH_PORT),
            again_if=_NO_CRI_YET,
        )
        self.containerd.start()
        self.kube_proxy.launch()
        self.kubelet.launch()
        self.kube_proxy.wait_ready()
        self.kubelet.wait_ready()

    def kill(self) -> None:
        """Take its power: from one moment to the next it is silent, and nothing of it runs any more."""
        # The network first: the kernel closes the connections of those who die, and a dead machine does not.
        self._switch.cut(self._index)
        self._machine.kill()
        wait_for(lambda: not self._groups.pids(), _OFF_SECONDS, f"all processes of {self.name} are gone")
        self._switch.disconnect(self._index)

    def cut(self) -> None:
        """Pull its cable: all runs on, and neither it nor its pods reach anybody, nor are reached."""
        self._switch.cut(self._index)

    def restore(self) -> None:
        """Undo `cut`."""
        self._switch.restore(self._index)

    def configure_kubelet(self, fields: Mapping[str, Any]) -> None:
        """Restart the kubelet with these fields in its configuration, in place of those of the last time."""
        self._kubelet_fields = dict(fields)
        config.write(self.plan, self._kubelet_fields)
        self.kubelet.restart()

    def reserve_disk(self, size: int) -> None:
        """Restart the kubelet such that it evicts when `size` more bytes of the node's disk are in use.

        The disk is this machine's, and others write on it, too. `configure_kubelet({})` undoes it.
        """
        disk = os.statvfs(self.plan.folder)
        left = disk.f_bavail * disk.f_frsize - size
        self.configure_kubelet({"evictionHard": {"nodefs.available": str(left)}})

    @property
    def pid(self) -> int:
        """Its first process, as this machine numbers it."""
        return int((self.plan.folder / init.PID_FILE).read_text())

    def container_pids(self, container: str) -> list[int]:
        """The processes of the container with this id, the first one first, as this machine numbers them."""
        return sorted(self._groups.pids(container), key=lambda pid: (_number_inside(pid), pid))

    def fill_memory(self, container: str, victim: int, seconds: float = 60.0) -> None:
        """Fill the memory of the container with this id until the kernel kills its process `victim` for it.

        The kernel takes whom it is told to prefer. What fills the memory is a process of this machine in the
        container's control group, as a loader's cache that has grown is.

        Raises TimeoutError if `victim` has not ended in time.
        """
        group = self._groups.memory_of(container)
        for pid in self.container_pids(container):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                Path("/proc", str(pid), "oom_score_adj").write_text("1000" if pid == victim else "0")
        memory.fill(group, victim, seconds)
        wait_for(lambda: not memory.runs(victim), _OFF_SECONDS, f"the kernel has killed {victim}")

    def _program(
        self,
        parent: ParentClient,
        name: str,
        command: list[str],
        ready: Callable[[int], bool],
        again_if: str = "",
    ) -> Component:
        full = f"{self.name}-{name}"
        log = self._logs_dir / f"{full}.log"
        return Component(full, parent, command, log, ready, again_if=again_if)

    def _is_healthy(self, port: int) -> Callable[[int], bool]:
        client = ApiClient(f"http://{self.address}:{port}")
        return lambda _: client.is_ok("/livez" if port == config.PROXY_HEALTH_PORT else "/healthz")

    def _connects(self, path: Path, kind: socket.SocketKind) -> bool:
        with socket.socket(socket.AF_UNIX, kind) as client:
            try:
                client.connect(self._inside(path))
            except OSError:
                return False
        return True

    def _inside(self, path: Path) -> str:
        """A path of the node as this machine reaches it. Raises OSError if the node is not there yet."""
        return f"/proc/{self.pid}/root{path}"


def _number_inside(pid: int) -> int:
    """The number that a process has in its own namespace of processes; 1 is a container's first one."""
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return sys.maxsize
    return next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))
