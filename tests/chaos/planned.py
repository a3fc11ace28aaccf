"""Planned changes: what people, autoscalers and clouds do to a job on purpose.

The training takes part in drains (``examples/digits`` asks ``should_stop``), so that none of these may lose a
step where nothing else is wrong.
"""

from __future__ import annotations

import json
from random import Random

from devcluster.api import Response
from elasticjob.contract.names import API_VERSION, DRAIN_ANNOTATION, PLURAL
from elasticjob.rounds.causes import Cause
from tests.chaos.faults import Begun, Heal, Impossible, Kind, Scene

TAINT = "karpenter.sh/disrupted"


def takes_part(scene: Scene) -> int:
    """The number of the running round if its leader says that all workers take part in drains and none has
    begun, else 0."""
    r = scene.status.current_round
    if r.phase != "Active" or r.drain is not None or r.established_time is None:
        return 0
    try:
        lease = scene.api("GET", scene.lease_path(r.leader_pod_name)).json()
    except Impossible:  # the API server or the leader is away
        return 0
    said = json.loads(lease["metadata"].get("annotations", {}).get(DRAIN_ANNOTATION, "{}"))
    return r.number if said.get("nonce") == r.nonce else 0


def delete_pod(scene: Scene, random: Random) -> Begun:
    """As a user does it."""
    pod = scene.member(random)
    scene.api("DELETE", f"pods/{pod}")
    return Begun(pod)


def evict_pod(scene: Scene, random: Random) -> Begun:
    """As ``kubectl drain`` does it."""
    pod = scene.member(random)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    scene.api("POST", f"pods/{pod}/eviction", eviction)
    return Begun(pod)


def notice(scene: Scene, random: Random) -> Begun:
    """A taint says that the node is about to go; it is taken back after a while."""
    node = scene.node(random)
    path = f"/api/v1/nodes/{node}"

    def taint(*ours: dict[str, str]) -> None:
        others = [t for t in scene.api("GET", path).json()["spec"].get("taints", []) if t["key"] != TAINT]
        scene.api("PATCH", path, {"spec": {"taints": [*others, *ours]}})

    taint({"key": TAINT, "effect": "NoSchedule"})
    seconds = random.uniform(12.0, 20.0)
    return Begun(f"{node}, for {seconds:.1f} s", Heal(seconds, "notice taken back", taint))


def scale(scene: Scene, random: Random) -> Begun:
    """Down, and up again after a while."""
    fewer = max(scene.minimum, scene.replicas - 2)

    def set_replicas(number: int) -> None:
        _patch(scene, "/scale", replicas=number)

    set_replicas(fewer)
    seconds = random.uniform(12.0, 18.0)
    up = Heal(seconds, SCALED_UP, lambda: set_replicas(scene.replicas))
    return Begun(f"to {fewer}", up)


def suspend(scene: Scene, random: Random) -> Begun:
    """For a while; the pods are deleted meanwhile."""
    _patch(scene, "", suspend=True)
    seconds = random.uniform(5.0, 10.0)
    return Begun(f"for {seconds:.1f} s", Heal(seconds, RESUMED, lambda: _resume(scene)))


def _resume(scene: Scene) -> None:
    _patch(scene, "", suspend=False)


def _patch(scene: Scene, subresource: str, **spec: object) -> Response:
    path = f"/apis/{API_VERSION}/namespaces/{scene.job.namespace}/{PLURAL}/{scene.job.name}{subresource}"
    return scene.api("PATCH", path, {"spec": spec})


SCALED_UP = "scaled up"
RESUMED = "resumed"

PLANNED = (
    Kind("delete a pod", delete_pod, ends_rounds=True, cause=Cause.POD_DELETED),
    Kind("evict a pod", evict_pod, ends_rounds=True, cause=Cause.EVICTED),
    Kind("notice of a node", notice, ends_rounds=True, cause=Cause.PREEMPTED),
    Kind("scale down", scale, ends_rounds=True, cause=Cause.SCALED_DOWN),
    Kind("suspend", suspend, ends_rounds=True, cause=Cause.SUSPENDED),
)
