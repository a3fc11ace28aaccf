"""What people and other controllers do to a job, its pods and its Leases."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.round_record import RoundRecord
from elasticjob_operator.plan.state.evidence import INFRASTRUCTURE, PREEMPTION
from tests.simulation.api import JOB_KEY, LIST_KEY, ROUND_KEY
from tests.simulation.cluster import Node
from tests.simulation.world import World

BY_HAND = "by-hand"


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


def give_notice(w: World) -> None:
    """An autoscaler or a cloud marks a node: it evicts what is there, or thinks better of it."""
    node = w.cluster.nodes[w.kernel.rng.choice(sorted(w.cluster.nodes))]
    if node.exists:
        w.disturb(
            f"{node.name} is about to go",
            node.name,
            *_pods_on(w, node),
            accounts=(PREEMPTION, INFRASTRUCTURE),
        )
        w.cluster.give_notice(node, "karpenter.sh/disrupted")
        end = w.kernel.rng.choice((_evict, _evict, _take_notice_back))
        w.later(w.kernel.rng.choice((0.1, 5.0, 30.0, 120.0)), end, w, node)


def _evict(w: World, node: Node) -> None:
    for name, uid in _named(w, node):
        w.disturb(f"pod {name} is evicted", uid, accounts=(PREEMPTION, INFRASTRUCTURE))
        w.cluster.disrupt_pod(name, "EvictionByEvictionAPI")
    w.later(w.kernel.between(10.0, 60.0), _take_notice_back, w, node)


def _take_notice_back(w: World, node: Node) -> None:
    w.disturb(f"{node.name} stays", *_pods_on(w, node), accounts=(PREEMPTION, INFRASTRUCTURE))
    w.cluster.give_notice(node, "")


def _named(w: World, node: Node) -> list[tuple[str, str]]:
    pods = [(key[1], item) for key, item in w.api.items.items() if key[0] == "pod"]
    return [
        (name, item.uid) for name, item in pods if item.value.node == node.name and not item.value.deleting
    ]


def _pods_on(w: World, node: Node) -> list[str]:
    return [uid for _, uid in _named(w, node)]


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


def recreate_job(w: World) -> None:
    """The job is deleted and made again under the same name."""
    item = w.api.items.get(JOB_KEY)
    if item is None:
        return
    w.disturb("the job is deleted and made again", "*", accounts=(PREEMPTION, INFRASTRUCTURE))
    w.delete_job(item.uid)
    w.progress, w.stage = 0.0, 1
    w.make_job()
