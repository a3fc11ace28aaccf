"""What can be done about a pod that has no node, by the scheduler's words for why. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from elasticjob_client.explain import lenient_template
from elasticjob_client.resource import ElasticJob

REASON = "Unschedulable"
_CLAIM = re.compile(r"persistent ?volume|\bpvc", re.IGNORECASE)
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_VOLUME_ELSEWHERE = re.compile(r"volume node affinity conflict|volume limits|max volume count")
_ROOM = re.compile(r"Insufficient |Too many pods")
_NO_NODE = re.compile(r"node affinity|node selector|untolerated taint|unschedulable|requested node name")


class Advice(NamedTuple):
    """``may_pass``: it may come to an end by itself. ``room``: the nodes are full."""

    may_pass: bool
    text: str
    room: bool = False


def advice(job: ElasticJob, waiting: str) -> Advice:
    """``waiting``: why the pod waits."""
    if missing := _NO_CLAIM.search(waiting):
        return Advice(False, f"create the PersistentVolumeClaim {missing[1]}, or name another")
    if _CLAIM.search(waiting):
        names = " ".join(claims(job)) or "NAME"
        return Advice(
            True, f"a claim is not bound to a volume: `kubectl describe pvc {names}` says why; nodes are fine"
        )
    if _VOLUME_ELSEWHERE.search(waiting):
        return Advice(
            True,
            "the volume cannot be used on the nodes that are free: claim storage that all nodes share "
            "(ReadWriteMany), or wait",
        )
    if _NO_NODE.search(waiting) and not _ROOM.search(waiting):
        return Advice(
            True, "no node is one that the template asks for: see its nodeSelector, affinity and tolerations"
        )
    return Advice(True, "wait, ask for less, or continue with fewer: spec.minReplicas", room=True)


def claims(job: ElasticJob) -> list[str]:
    """Those that the template names."""
    volumes = lenient_template.template(job.spec.template)["spec"]["volumes"]
    named = (one.get("persistentVolumeClaim", {}).get("claimName") for one in volumes)
    return [name for name in named if name]
