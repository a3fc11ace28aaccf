"""What can go wrong. Each fault takes the world, does its harm, and arranges for its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elasticjob.contract.records import RoundRecord
from elasticjob_operator.plan.causes import APPLICATION, INFRASTRUCTURE, PREEMPTION
from tests.simulation.agent import Agent
from tests.simulation.api import JOB_KEY, LIST_KEY, ROUND_KEY
from tests.simulation.cluster import Node
from tests.simulation.world import World

BY_HAND = "by-hand"
Fault = Callable[[World], None]


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
        if held is not None and held.rank == 0:
            w.disturb(f"the leader {agent.name} is killed", agent.uid)
            agent.end(137)
            return


def freeze_agent(w: World) -> None:
    """SIGSTOP for a while."""
    agent = _agent(w)
    if agent is not None and not agent.frozen:
        seconds = w.kernel.rng.choice((1.0, 5.0, 12.0, 35.0, 120.0))
        w.disturb(f"{agent.name} is frozen for {seconds:.0f} s", agent.uid, lightly=seconds < 29)
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
            # It takes nobody's training, but with more than this it may look so, and it tells of no end.
            w.oracle.happens(uid, INFRASTRUCTURE, harmless=True)
        node.kubelet = False
        if w.api.weather.loses_answers:
            _doubly(w, node)
        w.cluster.changed(node)
        w.later(w.kernel.rng.choice((10.0, 60.0, 150.0)), _kubelet_back, w, node)


def _doubly(w: World, node: Node) -> None:
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
    w.disturb(f"{node.name} is frozen for {seconds:.0f} s", *_on(w, node), lightly=seconds < 9)
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
    lightly = seconds < (30 if which == "api" else 9)
    w.disturb(f"{node.name} is cut off ({which}) for {seconds:.0f} s", *_on(w, node), lightly=lightly)
    if which in ("api", "both"):
        node.api = False
    if which in ("peers", "both"):
        node.peers = False
    w.cluster.changed(node)
    w.later(seconds, _mend_node, w, node)


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
    w.disturb(what, one.uid, other.uid, lightly=seconds < 9)
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


def delete_pod(w: World) -> None:
    """Somebody deletes a pod."""
    pods = [k[1] for k, i in w.api.items.items() if k[0] == "pod" and not i.value.deleting]
    if pods:
        name = w.kernel.rng.choice(pods)
        uid = w.api.items[("pod", name)].uid
        w.disturb(f"somebody deletes pod {name}", uid, accounts=(PREEMPTION, INFRASTRUCTURE))
        w.cluster.delete_pod(name)


def preempt_pod(w: World) -> None:
    """The scheduler, or somebody who drains a node, takes a pod away with notice."""
    pods = {k[1]: i.value for k, i in w.api.items.items() if k[0] == "pod"}
    living = {agent.uid for agent in w.running()}
    running = [name for name, pod in pods.items() if pod.uid in living and not pod.deleting]
    if running:
        name = w.kernel.rng.choice(running)
        reason = w.kernel.rng.choice(("PreemptionByScheduler", "EvictionByEvictionAPI"))
        uid = pods[name].uid
        w.disturb(f"pod {name} is taken away: {reason}", uid, accounts=(PREEMPTION,))
        w.cluster.disrupt_pod(name, reason)


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


def suspend(w: World) -> None:
    """Somebody suspends the job, for a while or for long."""
    if w.job is not None and not w.others and not w.job.job.spec.suspend:
        w.disturb("the job is suspended")
        w.change_spec(lambda s: replace(s, suspend=True))
        w.later(w.kernel.rng.choice((0.5, 5.0, 40.0, 1e6)), resume, w)


def resume(w: World) -> None:
    """Somebody resumes the job."""
    if w.job is not None and w.job.job.spec.suspend:
        w.disturb("the job is resumed")
        w.change_spec(lambda s: replace(s, suspend=False))


def change_spares(w: World) -> None:
    """Somebody edits spares."""
    to = w.kernel.rng.randint(0, 2)
    w.plan(f"spares are {to}")
    w.change_spec(lambda s: replace(s, spares=to))


def crash_operator(w: World) -> None:
    """kill -9 of the operator; another comes soon."""
    operator = w.operators[-1]
    if operator.alive:
        w.disturb("the operator is killed")
        operator.die()
        w.later(w.kernel.between(0.1, 20.0), _new_operator, w)


def _new_operator(w: World) -> None:
    if not w.operators[-1].alive:
        w.disturb("a new operator starts")
        w.start_operator()


def freeze_operator(w: World) -> None:
    """SIGSTOP of the operator."""
    operator = w.operators[-1]
    if operator.alive and not operator.frozen:
        w.disturb("the operator is frozen")
        operator.freeze()
        w.later(w.kernel.rng.choice((0.5, 5.0, 60.0)), operator.thaw)


def depose_operator(w: World) -> None:
    """Another operator takes over while the old one believes that it leads, perhaps within a pass."""
    old = w.operators[-1]
    if not old.alive:
        return
    w.disturb("another operator takes over, the old one goes on for a while")
    if w.kernel.rng.random() < 0.5:
        old.freeze()
        w.later(w.kernel.between(0.5, 20.0), old.thaw)
    w.start_operator()
    w.later(w.kernel.between(0.5, 30.0), _end_old, w, old)


def _end_old(w: World, old: object) -> None:
    for operator in w.operators[:-1]:
        if operator is old and operator.alive:
            w.kernel.say(f"{operator.name} learns that it leads no more")
            operator.thaw()
            operator.die()


def cut_operator(w: World) -> None:
    """The operator can't reach the API server."""
    operator = w.operators[-1]
    if operator.alive:
        w.disturb("the operator is cut off")
        operator.api_path = False
        w.later(w.kernel.rng.choice((1.0, 10.0, 60.0)), _mend_operator, w)


def _mend_operator(w: World) -> None:
    for operator in w.operators:
        operator.api_path = True


def api_down(w: World) -> None:
    """The API server is away."""
    w.disturb("the API server is away")
    w.api.weather.down = True
    w.api.drop_watches()
    w.later(w.kernel.rng.choice((0.5, 5.0, 30.0, 90.0)), _api_up, w)


def _api_up(w: World) -> None:
    if w.api.weather.down:
        w.disturb("the API server is back")
        w.api.weather.down = False


def api_slow(w: World) -> None:
    """Every request takes seconds."""
    w.disturb("the API server is slow")
    w.api.weather.slow = True
    w.later(w.kernel.between(5.0, 40.0), setattr, w.api.weather, "slow", False)


def lose_answers(w: World) -> None:
    """Requests are carried out and their answers are lost."""
    w.disturb("answers are lost")
    for node in w.cluster.nodes.values():
        if not node.kubelet:
            _doubly(w, node)
    w.api.weather.loses_answers = True
    w.later(w.kernel.between(1.0, 15.0), setattr, w.api.weather, "loses_answers", False)


def watches_lag(w: World) -> None:
    """Watches run late."""
    w.disturb("watches lag")
    w.api.weather.lag = w.kernel.rng.choice((0.5, 2.0, 8.0))
    w.later(w.kernel.between(5.0, 40.0), setattr, w.api.weather, "lag", 0.0)


def watches_drop(w: World) -> None:
    """All watches break."""
    w.disturb("all watches break")
    w.api.drop_watches()


def one_watch_drops(w: World) -> None:
    """One watch breaks."""
    if w.api.watches:
        w.disturb("one watch breaks")
        w.kernel.rng.choice(w.api.watches).break_off()


def scale(w: World) -> None:
    """kubectl scale."""
    to = w.kernel.rng.randint(1, 5)
    w.plan(f"scaled to {to}")
    w.change_spec(
        lambda s: replace(
            s,
            replicas=to,
            min_replicas=None if s.min_replicas is None else min(s.min_replicas, to),
        )
    )


def change_minimum(w: World) -> None:
    """Somebody edits minReplicas."""
    value = w.job
    if value is not None:
        to = w.kernel.rng.randint(1, value.job.spec.replicas)
        w.plan(f"minReplicas is {to}", minimum_raised=to > value.status.min_replicas)
        w.change_spec(lambda s: replace(s, min_replicas=min(to, s.replicas)))


def delete_record(w: World) -> None:
    """Somebody deletes the round Lease, and that of its members if there is one."""
    if LIST_KEY in w.api.items:
        w.disturb("somebody deletes the member list", "*")
        w.api.remove(LIST_KEY)
    if ROUND_KEY in w.api.items and w.api.items[ROUND_KEY].value.nonce != BY_HAND:
        w.disturb("somebody deletes the round Lease", "*")
        w.api.remove(ROUND_KEY)


def set_record_back(w: World) -> None:
    """Somebody restores an older round Lease, and an older member list if there is one."""
    lists = [item for key, item in w.api.log if key == LIST_KEY and item is not None]
    if LIST_KEY in w.api.items and lists[0].value.job_uid == w.api.items[LIST_KEY].value.job_uid:
        w.disturb("somebody sets the member list back", "*")
        w.api.put(LIST_KEY, lists[0].value)
    older = [item for key, item in w.api.log if key == ROUND_KEY and item is not None]
    now = w.api.items.get(ROUND_KEY)
    if now is not None and older:
        value = w.kernel.rng.choice(older).value
        if value.job_uid == now.value.job_uid and now.value.nonce != BY_HAND:
            w.disturb(f"somebody sets the round Lease back to {value.number} {value.phase}", "*")
            _by_hand(w, value)


def set_record_forward(w: World) -> None:
    """Somebody edits the round Lease's number, and that of the member list if there is one."""
    listed = w.api.items.get(LIST_KEY)
    if listed is not None:
        w.disturb("somebody sets the member list forward", "*")
        value = replace(listed.value, number=listed.value.number + 4, nonce=BY_HAND)
        w.api.put(LIST_KEY, value)
    now = w.api.items.get(ROUND_KEY)
    if now is not None:
        w.disturb("somebody sets the round Lease forward", "*")
        value = replace(now.value, number=now.value.number + w.kernel.rng.randint(1, 3), nonce=BY_HAND)
        _by_hand(w, value)


def _by_hand(w: World, value: RoundRecord) -> None:
    w.oracle.by_hand = True
    w.api.put(ROUND_KEY, value)
    w.oracle.by_hand = False


def delete_lease(w: World) -> None:
    """Somebody deletes a participant's Lease."""
    leases = [k for k in w.api.items if k[0] == "lease"]
    if leases:
        key = w.kernel.rng.choice(leases)
        w.disturb(f"somebody deletes Lease {key[1]}")
        w.api.remove(key)


def no_room(w: World) -> None:
    """Pods find no node for a while."""
    w.disturb("no node has room")
    w.cluster.no_room = True
    w.later(w.kernel.between(10.0, 90.0), setattr, w.cluster, "no_room", False)


def recreate_job(w: World) -> None:
    """The job is deleted and made again under the same name."""
    item = w.api.items.get(JOB_KEY)
    if item is None:
        return
    w.disturb("the job is deleted and made again", "*", accounts=(PREEMPTION, INFRASTRUCTURE))
    w.delete_job(item.uid)
    w.progress, w.stage = 0.0, 1
    w.make_job()


HARMLESS: tuple[Fault, ...] = (
    crash_operator,
    freeze_operator,
    depose_operator,
    cut_operator,
    api_down,
    api_slow,
    lose_answers,
    watches_lag,
    watches_drop,
    one_watch_drops,
    delete_lease,
    stop_kubelet,
    change_minimum,
    no_room,
)
"""Faults that may break no established round (I5)."""

HARMFUL: tuple[Fault, ...] = (
    kill_agent,
    kill_agent,
    kill_worker,
    kill_leader,
    freeze_agent,
    hang_agent,
    freeze_node,
    cut_node,
    sever_pair,
    node_dies,
    remove_node,
    delete_pod,
    preempt_pod,
    run_out_of_memory,
    hang_workers,
    scale,
    change_spares,
    suspend,
    delete_record,
    set_record_back,
    set_record_forward,
    recreate_job,
)
