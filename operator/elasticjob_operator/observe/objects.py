"""What the operator keeps of objects: reduced, frozen, and interpreted once when they arrive.

An object of the API server has 2 to 10 KB of JSON, of which the planner needs a few fields. It is read once.
A change of anything else is ignored (``==`` ignores the version) and starts no pass. Pods and Leases have
modules of their own (``seen_pod``, ``seen_lease``).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from elasticjob.contract.names import JOB_LABEL
from elasticjob.rounds.topology import Domains
from elasticjob_operator.observe.fields import first_owner_of, mapping, mappings, text_of, time_of, version_of

UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
ZONE_LABEL = "topology.kubernetes.io/zone"
_KEEPS_PODS_AWAY = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Seen:
    """What every kept object has. ``job`` is the value of its job label; ``version`` its
    resourceVersion, as a number (comparable within one resource, KEP-5504)."""

    namespace: str
    name: str
    uid: str
    job: str
    version: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that says that its node is about to go."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class SeenNode(Seen):
    """A node. ``unreachable`` and ``out_of_service`` are taints: the control plane puts the first there when
    it has not heard of the kubelet for a while; a person or a controller that knows that the machine is off
    sets the second. ``notices`` are the taints that say that the node is about to go. ``domains`` are where
    it is in the network, from coarse to fine, each as ``label=value``, "" for one that it does not name."""

    ready: bool
    unreachable: bool = False
    out_of_service: bool = False
    notices: tuple[Taint, ...] = ()
    zone: str = ""
    domains: Domains = ()


@dataclass(frozen=True, slots=True)
class SeenAccount(Seen):
    """The service account of a job, of which ``owner`` is the UID, and when it was ``made``."""

    owner: str
    made: datetime | None


T = TypeVar("T", bound=Seen)


def read_node(
    raw: Mapping[str, Any],
    _old: SeenNode | None = None,
    *,
    notices: Collection[str] = (),
    topology: Sequence[str] = (),
) -> SeenNode:
    """Slim a Node. One without a Ready condition is taken for ready: nothing speaks against it yet.

    ``notices`` are the keys of taints that say that a node is about to go. A mere preference of schedulers
    (PreferNoSchedule) says that it may. ``topology`` are the labels of its domains.
    """
    meta = mapping(raw, "metadata")
    labels = mapping(meta, "labels")
    ready = next(
        (c for c in mappings(mapping(raw, "status"), "conditions") if c.get("type") == "Ready"), None
    )
    taints = {str(taint.get("key")) for taint in mappings(mapping(raw, "spec"), "taints")}
    return SeenNode(
        namespace="",
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        job="",
        version=version_of(meta),
        ready=ready is None or ready.get("status") == "True",
        unreachable=UNREACHABLE_TAINT in taints,
        out_of_service=OUT_OF_SERVICE_TAINT in taints,
        notices=tuple(
            Taint(str(taint["key"]), text_of(taint.get("value")), str(taint["effect"]))
            for taint in mappings(mapping(raw, "spec"), "taints")
            if taint.get("key") in notices and taint.get("effect") in _KEEPS_PODS_AWAY
        ),
        zone=sys.intern(text_of(labels.get(ZONE_LABEL))),
        domains=tuple(
            sys.intern(f"{key}={value}") if (value := text_of(labels.get(key))) else "" for key in topology
        ),
    )


def read_account(raw: Mapping[str, Any], old: SeenAccount | None = None) -> SeenAccount:
    """Slim a ServiceAccount."""
    del old
    meta = mapping(raw, "metadata")
    return SeenAccount(
        namespace=str(meta.get("namespace", "")),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        job=str(mapping(meta, "labels").get(JOB_LABEL, "")),
        version=version_of(meta),
        owner=first_owner_of(meta),
        made=time_of(meta.get("creationTimestamp")),
    )
