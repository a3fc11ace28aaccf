"""The test's side of the control socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from signal import SIGKILL
from typing import Any, Literal

Direction = Literal["both", "in", "out"]

_LIMIT_SECONDS = 30.0


class NodeAgentError(RuntimeError):
    """The node agent refused a request; the message says why."""


class NodeAgentClient:
    """Faults and questions for the node agent that listens at ``path``. Each call is in force on return."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)

    def kill_node(self, name: str) -> None:
        """Take its power: all processes get SIGKILL at once, unreported, and the Lease is not renewed."""
        self._ask("kill_node", name=name)

    def shut_down_node(self, name: str, grace_seconds: float = 20.0) -> None:
        """Shut it down as kubelet does when the machine is told to: a spot instance that is reclaimed.

        The node is NotReady and admits nothing; its pods end within the grace period as Failed, with reason
        Terminated and the condition DisruptionTarget; then the power goes. :meth:`start_node` undoes it.
        """
        self._ask("shut_down_node", name=name, grace=grace_seconds)

    def start_node(self, name: str) -> None:
        """Switch a killed node on again, empty: containers that ran are lost or, by policy, start again."""
        self._ask("start_node", name=name)

    def freeze_node(self, name: str) -> None:
        """SIGSTOP to all its processes; its part of the agent is silent."""
        self._ask("freeze_node", name=name)

    def thaw_node(self, name: str) -> None:
        """Undo :meth:`freeze_node`."""
        self._ask("thaw_node", name=name)

    def cut_node(self, name: str) -> None:
        """Cut the network: neither the node nor its pods reach the API server.

        Pods with a network of their own don't reach those of other nodes either. The processes run on;
        nothing is closed, what is sent is held or lost.
        """
        self._ask("cut_node", name=name)

    def restore_node(self, name: str) -> None:
        """Undo :meth:`cut_node`."""
        self._ask("restore_node", name=name)

    def cut_pod(self, namespace: str, pod: str, direction: Direction = "both") -> None:
        """Cut one pod that has a network of its own from everything else.

        :param direction: "in": nothing reaches it, "out": nothing leaves it
        """
        self._ask("cut_pod", namespace=namespace, pod=pod, direction=direction)

    def restore_pod(self, namespace: str, pod: str) -> None:
        """Undo :meth:`cut_pod`."""
        self._ask("restore_pod", namespace=namespace, pod=pod)

    def cut_path(self, namespace: str, pod: str, peer: str) -> None:
        """Lose what ``pod`` sends to ``peer``, both with networks of their own; all else passes."""
        self._ask("cut_path", namespace=namespace, pod=pod, peer=peer)

    def restore_path(self, namespace: str, pod: str, peer: str) -> None:
        """Undo :meth:`cut_path`."""
        self._ask("restore_path", namespace=namespace, pod=pod, peer=peer)

    def kill_container(
        self,
        namespace: str,
        pod: str,
        container: str | None = None,
        signal: int = SIGKILL,
        group: bool = False,
    ) -> None:
        """Signal a container's main process (or all the pod's containers').

        When that process ends, the rest of the container is killed, as a runtime does.

        :param group: signal its whole process group
        """
        arguments = {"container": container, "signal": int(signal), "group": group}
        self._ask("kill_container", namespace=namespace, pod=pod, **arguments)

    def run_out_of_memory(self, namespace: str, pod: str, container: str, pid: int) -> None:
        """SIGKILL a process of a container (its PID as :meth:`pids` has it) as the kernel does when the
        container's memory is full.

        It counts the kill in its control group. The end of that run of the container is OOMKilled, whenever
        and however it ends. The container needs a limit of memory.
        """
        self._ask("run_out_of_memory", namespace=namespace, pod=pod, container=container, pid=pid)

    def evict_pod(
        self, namespace: str, pod: str, message: str = "The node was low on resource: memory. "
    ) -> None:
        """End a pod as kubelet does, for the reason in `message`, begun when this returns.

        It becomes Failed, with reason Evicted and the condition DisruptionTarget; its object stays. Nothing
        is really short, and the node gets no condition MemoryPressure.
        """
        self._ask("evict_pod", namespace=namespace, pod=pod, message=message)

    def pids(self, namespace: str, pod: str, container: str | None = None) -> list[int]:
        """Host PIDs of all processes of a container (or of all containers); main processes come first."""
        found: list[int] = self._ask("pids", namespace=namespace, pod=pod, container=container)
        return found

    def logs_path(self, namespace: str, pod: str, container: str | None = None) -> Path:
        """The log of the container's last run (default: its first container's)."""
        return Path(self._ask("logs_path", namespace=namespace, pod=pod, container=container))

    def _ask(self, do: str, **arguments: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answers:
            connection.settimeout(_LIMIT_SECONDS)
            connection.connect(self._path)
            connection.sendall(json.dumps({"do": do, "with": arguments}).encode() + b"\n")
            answer = json.loads(answers.readline() or b'{"error": "the node agent has ended"}')
        if "error" in answer:
            raise NodeAgentError(answer["error"])
        return answer["result"]
