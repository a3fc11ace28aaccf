"""Faults of processes, machines and the paths between them."""

from __future__ import annotations

from elasticjob_operator.plan.state.evidence import APPLICATION, INFRASTRUCTURE
from tests.simulation.agent import Agent
from tests.simulation.cluster import Node
from tests.simulation.world import World

_STILL_SECONDS = 30
"""How often a fault that lasts is told again."""


def _agent(w: World) -> Agent | None:
    running = w.running()
    return w.kernel.rng.choice(running) if running else None


def _node(w: World) -> Node:
    return w.cluster.nodes[w.kernel.rng.choice(sorted(w.cluster.nodes))]


def _on(w: World, node: Node) -> list[str]:
    return [a.uid for a in w.cluster.agents.values() if a.pod.node == node.name]


def kill_agent(w: World) -> None:
    """kill -9 of an agent."""
    agent = _agent(w)
    if agent is not None:
        w.disturb(f"{agent.name} is killed", agent.uid)
        agent.end(137)


def kill_worker(w: World) -> None:
    """A worker ends by its own fault."""
    agent = _agent(w)
    if agent is not None and agent.in_round is not None:
        w.disturb(f"a worker of {agent.name} fails")
        agent.fail_worker(agent.in_round, w.kernel.rng.choice((-9, 1, 42, None)))


def kill_leader(w: World) -> None:
    """kill -9 of rank 0's agent."""
    for agent in w.running():
        held = agent.core.membership
        if held is not None and held.group_rank == 0:
            w.disturb(f"the leader {agent.name} is killed", agent.uid)
            agent.end(137)
            return


def freeze_agent(w: World) -> None:
    """SIGSTOP for a while."""
    agent = _agent(w)
    if agent is not None and not agent.frozen:
        seconds = w.kernel.rng.choice((1.0, 5.0, 12.0, 35.0, 120.0))
        w.disturb(f"{agent.name} is frozen for {seconds:.0f} s", agent.uid, lightly=_if_below(29, seconds))
        agent.freeze()
        w.later(seconds, _thaw, w, agent)


def _thaw(w: World, agent: Agent) -> None:
    if agent.alive and agent.frozen and not agent.hangs and not w.cluster.node_of(agent).frozen:
        w.disturb(f"{agent.name} is thawed")
        agent.thaw()


def hang_agent(w: World) -> None:
    """An agent stands still for ever; its pod looks well."""
    agent = _agent(w)
    if agent is not None:
        w.disturb(f"{agent.name} hangs for ever", agent.uid)
        agent.hangs = True
        agent.freeze()


def stop_kubelet(w: World) -> None:
    """A kubelet dies alone: its pods train on, their status stands still."""
    node = _node(w)
    if node.kubelet:
        w.disturb(f"the kubelet of {node.name} is away")
        for uid in _on(w, node):
            # It stops no training, but with more than this it may look so, and it tells of no end.
            w.oracle.happens(uid, INFRASTRUCTURE, harmless=True)
        node.kubelet = False
        mute = any(a.mute_until > w.kernel.now for a in w.running() if a.pod.node == node.name)
        if w.api.weather.loses_answers or mute:
            looks_lost(w, node)
        w.cluster.changed(node)
        w.later(w.kernel.rng.choice((10.0, 60.0, 150.0)), _kubelet_back, w, node)


def looks_lost(w: World, node: Node) -> None:
    """A node without a kubelet whose pods' renewals fail, too, looks like one that is lost."""
    for uid in _on(w, node):
        w.oracle.happens(uid, INFRASTRUCTURE)


def _kubelet_back(w: World, node: Node) -> None:
    node.kubelet = True
    w.cluster.changed(node)


def freeze_node(w: World) -> None:
    """A machine stands still."""
    node = _node(w)
    if node.frozen or not node.power:
        return
    seconds = w.kernel.rng.choice((3.0, 15.0, 60.0))
    w.disturb(f"{node.name} is frozen for {seconds:.0f} s", *_on(w, node), lightly=_if_below(9, seconds))
    node.frozen = True
    for agent in w.running():
        if agent.pod.node == node.name:
            agent.freeze()
    w.cluster.changed(node)
    w.later(seconds, _thaw_node, w, node)


def _thaw_node(w: World, node: Node) -> None:
    if not node.frozen:
        return
    node.frozen = False
    w.disturb(f"{node.name} is thawed")
    for agent in w.running():
        if agent.pod.node == node.name and not agent.hangs:
            agent.thaw()
    w.cluster.changed(node)


def cut_node(w: World) -> None:
    """A node loses its path to the API server, to its peers, or both."""
    node = _node(w)
    which = w.kernel.rng.choice(("api", "peers", "both"))
    seconds = w.kernel.rng.choice((2.0, 8.0, 20.0, 100.0))
    # A path to the API server alone takes nothing from a running round, until its node is NotReady, too.
    lightly = _if_below(30 if which == "api" else 9, seconds)
    w.disturb(f"{node.name} is cut off ({which}) for {seconds:.0f} s", *_on(w, node), lightly=lightly)
    if which in ("api", "both"):
        node.api = False
    if which in ("peers", "both"):
        node.peers = False
    w.cluster.changed(node)
    _mend_later(w, node, seconds)


def cut_round_off(w: World) -> None:
    """All nodes of a round lose their paths to the API server and to each other: its members train on, and
    nothing tells whether they do."""
    held = {agent.pod.node for agent in w.running() if agent.in_round is not None}
    seconds = w.kernel.rng.choice((60.0, 150.0, 300.0))
    for name in sorted(held):
        node = w.cluster.nodes[name]
        w.disturb(f"{node.name} is cut off with its round for {seconds:.0f} s", *_on(w, node))
        node.api = node.peers = False
        w.cluster.changed(node)
        _mend_later(w, node, seconds)


def _mend_later(w: World, node: Node, seconds: float) -> None:
    """It is cut off for so long, and each round that is formed meanwhile may end for that."""
    for after in range(_STILL_SECONDS, int(seconds), _STILL_SECONDS):
        w.later(after, _still_cut, w, node)
    w.later(seconds, _mend_node, w, node)


def _if_below(limit: float, seconds: float) -> float:
    """``lightly`` of ``disturb``: these seconds, or 0 if they may end a round."""
    return seconds if seconds < limit else 0.0


def _still_cut(w: World, node: Node) -> None:
    if not (node.api and node.peers):
        for uid in _on(w, node):
            w.oracle.happens(uid, INFRASTRUCTURE)


def _mend_node(w: World, node: Node) -> None:
    if node.power and node.exists:
        node.api = node.peers = True
        w.disturb(f"{node.name} is reachable again")
        w.cluster.changed(node)


def sever_pair(w: World) -> None:
    """Two pods can't reach each other."""
    running = w.running()
    if len(running) < 2:
        return
    one, other = w.kernel.rng.sample(running, 2)
    seconds = w.kernel.rng.choice((3.0, 20.0, 60.0))
    what = f"{one.name} and {other.name} can't reach each other for {seconds:.0f} s"
    w.disturb(what, one.uid, other.uid, lightly=_if_below(9, seconds))
    w.cluster.severed.add((one.uid, other.uid))
    w.later(seconds, _join_pair, w, one, other)


def _join_pair(w: World, one: Agent, other: Agent) -> None:
    w.cluster.severed.discard((one.uid, other.uid))
    w.disturb(f"{one.name} and {other.name} reach each other again")


def node_dies(w: World) -> None:
    """Power off; the machine comes back later, perhaps after its object was deleted or it was written off."""
    node = _node(w)
    if not node.power:
        return
    w.disturb(f"{node.name} dies", *_on(w, node))
    node.power = node.peers = node.api = False
    for agent in w.running():
        if agent.pod.node == node.name:
            agent.end(137)
    w.cluster.changed(node)
    what_follows = w.kernel.rng.choice((w.cluster.remove_node, w.cluster.take_out_of_service, None))
    if what_follows is not None:
        w.later(w.kernel.between(5.0, 60.0), what_follows, node)
    w.later(w.kernel.between(60.0, 150.0), _node_back, w, node)


def _node_back(w: World, node: Node) -> None:
    if not node.power:
        w.disturb(f"{node.name} is back", *_on(w, node))
        w.cluster.add_node_again(node)


def remove_node(w: World) -> None:
    """A node object is deleted while its pods run on."""
    node = _node(w)
    if node.exists and node.power:
        w.disturb(f"the object of {node.name} is deleted", *_on(w, node))
        w.cluster.remove_node(node)
        w.later(w.kernel.between(30.0, 90.0), _register, w, node)


def _register(w: World, node: Node) -> None:
    if not node.exists:
        w.disturb(f"{node.name} registers again", *_on(w, node))
        w.cluster.add_node_again(node)


def run_out_of_memory(w: World) -> None:
    """The kernel kills an agent that has used up its memory; only its kubelet knows why."""
    agent = _agent(w)
    if agent is not None:
        unknown = w.others or not w.cluster.node_of(agent).healthy
        accounts = (APPLICATION, INFRASTRUCTURE) if unknown else (APPLICATION,)
        w.disturb(f"{agent.name} is out of memory", agent.uid, accounts=accounts)
        agent.end(137, "OOMKilled")


def hang_workers(w: World) -> None:
    """The training loop stands still; everything else is well."""
    w.hang_workers()


def no_room(w: World) -> None:
    """Pods find no node for a while."""
    w.disturb("no node has room")
    w.cluster.no_room = True
    w.later(w.kernel.between(10.0, 90.0), setattr, w.cluster, "no_room", False)
