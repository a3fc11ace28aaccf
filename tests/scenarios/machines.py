"""Commands of scenarios about nodes, and about pods that are taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from elasticjob.rounds.topology import Domains
from elasticjob_operator.plan.state.model import Exit, Now, Pod
from elasticjob_operator.plan.state.status import JobStatus

STATES: dict[str, dict[str, Any]] = {
    "ready": {},
    "notready": {"node_ready": False},
    "unreachable": {"node_ready": False, "unreachable": True},
    "out-of-service": {"node_ready": False, "unreachable": True, "out_of_service": True},
    "out-of-service-and-ready": {"out_of_service": True},
    "gone": {"node_gone": True},
    "disrupted": {"notice": "karpenter.sh/disrupted"},
}
"""What a pod's node looks like in each state."""

READY = ("ready", "out-of-service-and-ready", "disrupted")

WELL: dict[str, Any] = {
    "node_ready": True,
    "unreachable": False,
    "out_of_service": False,
    "node_gone": False,
    "notice": "",
}


class NodeCommands:
    """The part of ``World`` that is about nodes and disruptions."""

    status: JobStatus
    pods: dict[str, Pod]
    trace: list[str]
    node_states: dict[str, str]
    domains: dict[str, Domains]

    def do_topology(self, **places: str) -> None:
        """``topology a=z1/r1 b=z1/r2``: the zone and the rack of each node."""
        for node, place in places.items():
            zone, rack = place.split("/")
            self.domains[node] = (f"zone={zone}", f"rack={rack}")

    def now(self) -> Now:
        """``World`` has it."""
        raise NotImplementedError

    def do_nodes(self, *names: str) -> None:
        """These nodes exist, too, and are ready. Nodes that pods are on need not be named."""
        self.node_states.update(dict.fromkeys(names, "ready"))

    def do_node(self, node: str, state: str) -> None:
        """``node b notready``, or another of the states above."""
        self.node_states[node] = state
        for name, pod in self.pods.items():
            if pod.node == node:
                self.pods[name] = replace(pod, **{**WELL, **STATES[state]})

    def ready_nodes(self) -> frozenset[str]:
        """The nodes that the operator sees to be ready."""
        for pod in self.pods.values():
            if pod.node:
                self.node_states.setdefault(pod.node, "ready")
        return frozenset(name for name, state in self.node_states.items() if state in READY)

    def do_disrupt(
        self, name: str, reason: str, message: str = "", only: str = "", hook: str = "0", waits: str = "0"
    ) -> None:
        """Somebody takes a pod away and says so in its condition, then deletes it; ``only=condition``: the
        deletion has failed or is still to come. ``hook`` and ``waits``: as of ``delete``."""
        pod = self.pods[name]
        self.pods[name] = replace(
            pod,
            disruption=reason,
            reason=pod.reason or reason,
            message=pod.message or message,
            deleting=pod.deleting or not only,
            deletion_time=None if only else self.now().wall,
            drain_seconds=int(hook),
            replace_seconds=int(waits),
        )

    def do_kubelet(self, name: str, reason: str, message: str, code: str = "137") -> None:
        """The kubelet has ended a pod for a reason of its own, and says so when its containers have ended."""
        self.pods[name] = replace(
            self.pods[name],
            running=False,
            ended=True,
            exit=Exit(int(code), "Error"),
            reason=reason,
            message=message,
            disruption="TerminationByKubelet",
        )

    def do_rejected_by_its_node(self, name: str, reason: str, message: str, node: str = "") -> None:
        """The kubelet has failed a pod before any container of it was started."""
        node = node or self.pods[name].node
        self.pods[name] = replace(self.pods[name], ended=True, reason=reason, message=message, node=node)

    def do_collect(self, name: str, message: str) -> None:
        """The pod garbage collector gives a pod up whose node is dead: Failed, then deleted with force. Here
        the object is still to be seen."""
        self.pods[name] = replace(
            self.pods[name],
            running=False,
            ended=True,
            deleting=True,
            reason="DeletionByPodGC",
            disruption="DeletionByPodGC",
            message=message,
        )

    def do_excluded(self) -> None:
        """Say which nodes are excluded."""
        for n in self.status.excluded_nodes:
            until = (
                f"lifted {n.lifted_time:%H:%M:%S}"
                if n.lifted_time is not None
                else f"until {n.until_time:%H:%M:%S}"
            )
            self.trace.append(f"node {n.name} {until}: {n.message}")
        if not self.status.excluded_nodes:
            self.trace.append("no node is excluded")


def exclusions(old: JobStatus, new: JobStatus) -> Iterator[str]:
    """Nodes that are avoided from now on, or no longer."""
    before = {n.name for n in old.excluded_nodes if n.lifted_time is None}
    now = {n.name for n in new.excluded_nodes if n.lifted_time is None}
    for name in sorted(now - before):
        yield f"node {name} is excluded"
    for name in sorted(before - now):
        lifted = any(n.name == name for n in new.excluded_nodes)
        yield f"the exclusion of node {name} is {'lifted' if lifted else 'over'}"
