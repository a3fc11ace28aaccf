"""Nodes, network, scheduler, kubelets and the garbage collector, as far as a job can feel them.

They see the truth and answer after a while. What they promise is Kubernetes': a pod's status is written
by its node alone; a node that is silent for 40 s is NotReady; a deleted pod goes when its node says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticjob_operator.plan.state.model import Exit, Pod
from tests.simulation.agent import Agent
from tests.simulation.api import Api, Item, Key
from tests.simulation.gang import Gang
from tests.simulation.ground import Network
from tests.simulation.kernel import Kernel

NOT_READY_SECONDS = 40.0
EVICTION_SECONDS = 300.0


class NodeValue(NamedTuple):
    """A node's object. ``out_of_service``: it was tainted by hand. ``notice``: a taint says that it is about
    to go, which keeps new pods away."""

    ready: bool
    out_of_service: bool = False
    notice: str = ""


@dataclass
class Node:
    """A machine. ``power``: it runs at all. ``api``, ``peers``: its paths. ``frozen``: it stands still."""

    name: str
    power: bool = True
    api: bool = True
    peers: bool = True
    frozen: bool = False
    exists: bool = True
    kubelet: bool = True
    silent_since: float | None = None
    back_at: float = float("-inf")
    """When it registered itself again."""

    @property
    def healthy(self) -> bool:
        """Whether its kubelet can do its work and say so."""
        return self.power and self.api and self.kubelet and not self.frozen and self.exists


class Cluster(Network):
    """See the module. ``agents`` are by pod UID; ``start_agent`` makes one in a pod."""

    def __init__(self, api: Api, kernel: Kernel, nodes: int, start_agent: Callable[[Pod], Agent]) -> None:
        self.api = api
        self.kernel = kernel
        self.nodes = {f"node-{i}": Node(f"node-{i}") for i in range(nodes)}
        self.agents: dict[str, Agent] = {}
        self.no_room = False
        self.restarts_in_place = False
        """restartPolicy OnFailure, as pods of others may have it."""
        self.sidecars = False
        """Whether beside each training container another one runs until its pod is deleted."""
        self.gang: Gang | None = None
        self.severed: set[tuple[str, str]] = set()
        """Pairs of pods (by UID) that can't reach each other."""
        self._start_agent = start_agent
        self._ips = 0
        self._stopping: set[str] = set()
        for name in self.nodes:
            api.put(("node", name), NodeValue(True))
        api.committed.append(self._committed)

    # -- the network, as agents feel it --------------------------------------------------------------------

    def node_of(self, agent: Agent) -> Node:
        """Where this agent runs."""
        return self.nodes[agent.pod.node]

    def reaches_api(self, agent: Agent) -> bool:
        """Whether the agent's path to the API server is whole."""
        return self.node_of(agent).api

    def connected(self, one: Agent, other: Agent) -> bool:
        """Whether packets pass both ways between two agents."""
        if one is other:
            return True
        a, b = self.node_of(one), self.node_of(other)
        if (one.uid, other.uid) in self.severed or (other.uid, one.uid) in self.severed:
            return False
        return a is b or (a.peers and b.peers and a.power and b.power)

    def answers(self, agent: Agent) -> bool:
        """Whether the kernel under this agent answers packets at all."""
        node = self.node_of(agent)
        return node.power and not node.frozen

    def is_there(self, pod: Pod) -> bool:
        """Whether the pod's node has an object, and was not declared out of service."""
        item = self.api.items.get(("node", pod.node))
        return item is not None and not item.value.out_of_service

    # -- what is done to it --------------------------------------------------------------------------------

    def changed(self, node: Node) -> None:
        """A node's state was changed: let its lifecycle follow."""
        if node.healthy:
            node.silent_since = None
            self.kernel.after(self.kernel.between(0.5, 5.0), self._ready_again, node)
            for agent in list(self.agents.values()):
                if agent.pod.node == node.name:
                    self._catch_up(agent)
        elif node.silent_since is None:
            node.silent_since = self.kernel.now
            self.kernel.after(NOT_READY_SECONDS, self._not_ready, node, node.silent_since)
            self.kernel.after(NOT_READY_SECONDS + EVICTION_SECONDS, self._evict, node, node.silent_since)

    def remove_node(self, node: Node) -> None:
        """The node object is deleted; its pods' objects follow by and by, whatever still runs there."""
        node.exists = False
        if ("node", node.name) in self.api.items:
            self.api.remove(("node", node.name))
        self.changed(node)
        for key, item in list(self.api.items.items()):
            if key[0] == "pod" and item.value.node == node.name:
                self.kernel.after(self.kernel.between(5.0, 40.0), self._collect_pod, key, item.uid)

    def give_notice(self, node: Node, taint: str) -> None:
        """A node is marked because it is about to go, or ("") no longer."""
        item = self.api.items.get(("node", node.name))
        if item is not None and item.value.notice != taint:
            self.api.put(("node", node.name), item.value._replace(notice=taint))

    def take_out_of_service(self, node: Node) -> None:
        """An administrator knows that the machine is off: its pods are evicted and collected without it."""
        if not node.exists or node.power:
            return
        self.api.put(("node", node.name), NodeValue(False, True))
        for key, item in list(self.api.items.items()):
            if key[0] == "pod" and item.value.node == node.name:
                doomed = replace(item.value, deleting=True, disruption="DeletionByTaintManager")
                self.api.put(key, doomed, item.uid)
                self.kernel.after(self.kernel.between(5.0, 40.0), self._collect_pod, key, item.uid)

    def add_node_again(self, node: Node) -> None:
        """The machine registers itself anew, with nothing running."""
        for agent in list(self.agents.values()):
            if agent.pod.node == node.name and agent.alive:
                agent.die()
        node.exists = node.power = node.api = node.peers = True
        node.frozen = False
        node.back_at = self.kernel.now
        self.api.put(("node", node.name), NodeValue(True))
        self.changed(node)

    def delete_pod(self, name: str, uid: str = "") -> Item | None:
        """The delete request: at once without a node, else a deletionTimestamp for the kubelet. Returns the
        pod if it is still there."""
        item = self.api.get(("pod", name))
        pod: Pod = item.value
        if uid and item.uid != uid:
            self.api.remove(("pod", name), uid)
        if not pod.node or pod.ended:
            self.api.remove(("pod", name), item.uid)
            return None
        return item if pod.deleting else self.api.put(("pod", name), replace(pod, deleting=True), item.uid)

    def disrupt_pod(self, name: str, reason: str) -> None:
        """Say in the pod's status what is about to delete it; the deletion follows."""
        item = self.api.get(("pod", name))
        self.api.put(("pod", name), replace(item.value, disruption=reason), item.uid)
        self.kernel.after(self.kernel.between(0.005, 0.3), self.collect, name, item.uid)

    def collect(self, name: str, uid: str) -> None:
        """A controller deletes this very pod: the garbage collector, or the scheduler."""
        item = self.api.items.get(("pod", name))
        if item is not None and item.uid == uid:
            self.delete_pod(name, uid)

    over: Callable[[], bool]
    """Whether the job has ended, so that nothing is restarted any more; set by the world."""

    places: Callable[[], float]
    """For how many pods there is room; set by the world."""

    owner_is_there: Callable[[Pod], bool]
    """Whether the ElasticJob that owns the pod exists; set by the world."""

    # -- controllers ---------------------------------------------------------------------------------------

    def _committed(self, key: Key, old: Item | None, item: Item | None) -> None:
        if key[0] != "pod":
            return
        if item is None:
            assert old is not None
            self.kernel.after(self.kernel.between(0.1, 2.0), self._collect_lease, key[1], old.uid)
            if old.uid in self.agents:
                self.kernel.after(self.kernel.between(0.1, 2.0), self._catch_up, self.agents[old.uid])
            return
        pod: Pod = item.value
        if old is None:
            self.kernel.after(self.kernel.between(0.05, 1.0), self._schedule, key, item.uid)
            if not self.owner_is_there(pod):
                self.kernel.after(self.kernel.between(0.1, 3.0), self.collect, key[1], item.uid)
        elif pod.deleting and not old.value.deleting:
            self.kernel.after(self.kernel.between(0.05, 0.5), self._terminate, item.uid)

    def _schedule(self, key: Key, uid: str) -> None:
        item = self.api.items.get(key)
        if item is None or item.uid != uid or item.value.node or item.value.deleting:
            return
        if self.gang is not None and self.gang.holds(item.value):
            self.kernel.after(self.kernel.between(0.2, 2.0), self._schedule, key, uid)
            return
        together = 1 if self.gang is None else self.gang.together(item.value)
        avoids = item.value.avoids
        ready = [
            n
            for n in self.nodes.values()
            if n.exists and self._is_ready(n) and n.name not in avoids and not self._has_notice(n)
        ]
        if self.no_room or not ready or self._taken() + together > self.places():
            if not item.value.unschedulable:
                self.api.put(key, replace(item.value, unschedulable="0/3 nodes are available"), uid)
            self.kernel.after(self.kernel.between(1.0, 5.0), self._schedule, key, uid)
            return
        node = self.kernel.rng.choice(ready)
        self.api.put(key, replace(item.value, node=node.name, unschedulable=""), uid)
        self.kernel.after(self.kernel.between(0.2, 3.0), self._start, key, uid)

    def _taken(self) -> int:
        """How many pods hold a place on nodes that are ready."""
        pods = (i.value for k, i in self.api.items.items() if k[0] == "pod" and not i.value.ended)
        return sum(pod.node != "" and self._is_ready(self.nodes[pod.node]) for pod in pods)

    def _is_ready(self, node: Node) -> bool:
        item = self.api.items.get(("node", node.name))
        return item is not None and bool(item.value.ready)

    def _has_notice(self, node: Node) -> bool:
        item = self.api.items.get(("node", node.name))
        return item is not None and bool(item.value.notice)

    def _start(self, key: Key, uid: str) -> None:
        item = self.api.items.get(key)
        if item is None or item.uid != uid or uid in self.agents or item.value.deleting:
            return
        if not self.nodes[item.value.node].healthy:
            self.kernel.after(1.0, self._start, key, uid)
            return
        self._ips += 1
        pod = replace(item.value, running=True, ip=f"10.0.{self._ips // 250}.{self._ips % 250}")
        self.api.put(key, pod, uid)
        self.agents[uid] = self._start_agent(pod)

    def agent_ended(self, agent: Agent) -> None:
        """A container has ended: its kubelet says so as soon as it can."""
        self.kernel.after(self.kernel.between(0.05, 1.0), self._catch_up, agent)

    def _catch_up(self, agent: Agent) -> None:
        """Bring a pod's object up to what is true on its node."""
        item = self.api.items.get(("pod", agent.pod.name))
        if not self.node_of(agent).healthy:
            return
        if item is None or item.uid != agent.uid:
            if agent.alive:
                agent.die()  # the kubelet ends containers whose pod is gone
            return
        pod: Pod = item.value
        if pod.deleting and agent.alive:
            self._terminate(agent.uid)
        elif self._restarts(agent, pod):
            if self.agents[agent.uid] is agent:
                end = Exit(agent.exit_code, agent.exit_reason)
                again = replace(pod, last_exit=end, restarts=pod.restarts + 1)
                self.api.put(("pod", pod.name), again, agent.uid)
                self.agents[agent.uid] = self._start_agent(again)
        elif not agent.alive and not pod.ended and pod.exit is None:
            end = Exit(agent.exit_code, agent.exit_reason)
            alone = not self.sidecars
            done = replace(pod, running=False, ended=alone, sidecar_running=not alone, exit=end)
            if self.api.weather.down:
                self.kernel.after(1.0, self._catch_up, agent)
                return
            self.api.put(("pod", pod.name), done, agent.uid)
            if done.deleting:
                self.api.remove(("pod", pod.name), agent.uid)
        elif not agent.alive and pod.deleting:
            self.api.remove(("pod", pod.name), agent.uid)

    def _restarts(self, agent: Agent, pod: Pod) -> bool:
        again = self.restarts_in_place and agent.exit_code != 0 and not self.over()
        return again and not agent.alive and not pod.deleting and not pod.ended

    def _terminate(self, uid: str) -> None:
        """The kubelet's preStop hook and SIGTERM, then SIGKILL after the grace period."""
        agent = self.agents.get(uid)
        if agent is None:
            key = next((k for k, i in self.api.items.items() if k[0] == "pod" and i.uid == uid), None)
            if key is not None:
                self.api.remove(key, uid)  # it never ran
            return
        if not self.node_of(agent).healthy or uid in self._stopping:
            return
        self._stopping.add(uid)
        if agent.alive:
            if agent.pod.drain_seconds and agent.hook_waits(0.0):
                self.kernel.after(1.0, self._hook, agent, 1.0)
            else:
                agent.terminate()
            self.kernel.after(30.0 + agent.pod.replace_seconds, self._kill_after_grace, agent)
        else:
            self._catch_up(agent)

    def _hook(self, agent: Agent, seconds: float) -> None:
        """The hook looks once a second."""
        if not agent.alive:
            return
        if agent.hook_waits(seconds):
            self.kernel.after(1.0, self._hook, agent, seconds + 1.0)
        else:
            agent.terminate()

    def _kill_after_grace(self, agent: Agent) -> None:
        self._stopping.discard(agent.uid)
        if agent.alive and self.node_of(agent).healthy:
            agent.end(137)

    def _ready_again(self, node: Node) -> None:
        if node.healthy and not self._is_ready(node):
            self.api.put(("node", node.name), NodeValue(True))

    def _not_ready(self, node: Node, since: float) -> None:
        if node.silent_since == since and node.exists and self._is_ready(node):
            self.kernel.say(f"{node.name} is NotReady")
            self.api.put(("node", node.name), NodeValue(False))

    def _evict(self, node: Node, since: float) -> None:
        if node.silent_since != since:
            return
        for key, item in list(self.api.items.items()):
            if key[0] == "pod" and item.value.node == node.name and not item.value.deleting:
                doomed = replace(item.value, deleting=True, disruption="DeletionByTaintManager")
                self.api.put(key, doomed, item.uid)

    def _collect_pod(self, key: Key, uid: str) -> None:
        item = self.api.items.get(key)
        there = self.api.items.get(("node", item.value.node)) if item is not None else None
        dead = there is None or there.value.out_of_service
        if item is not None and item.uid == uid and dead:
            self.api.remove(key, uid)

    def _collect_lease(self, pod: str, uid: str) -> None:
        item = self.api.items.get(("lease", pod))
        if item is not None and item.value.holder == uid:
            self.api.remove(("lease", pod), item.uid)
