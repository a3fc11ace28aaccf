"""The planner's view of the world: frozen data, no behaviour, no I/O.

``Observed`` is what the informers saw; times in it are durations judged by the observer's own
monotonic clock (design, I9). ``Plan`` is what shall be done about it, in order: write the status,
then access, then project the round, then pods, Leases and Events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elasticjob.contract.records import FailureReport, ParticipantRecord, RoundRecord, RoundReport
from elasticjob_operator.plan.status import JobStatus


@dataclass(frozen=True)
class Limit:
    """A restart budget: at most ``max_restarts`` charges in any ``window_seconds``. None is unlimited."""

    max_restarts: int | None = None
    window_seconds: int | None = None


@dataclass(frozen=True)
class Rendezvous:
    """``spec.rendezvous``, seconds. The defaults are the schema's."""

    start_timeout: int = 300
    last_call: int = 15
    rejoin: int = 45
    establish_timeout: int = 15
    heartbeat_timeout: int = 10
    join_timeout: int | None = None


@dataclass(frozen=True)
class JobSpec:
    """``spec``, with what is absent made explicit. ``template`` is None when the pods are somebody else's."""

    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    nproc_per_node: str | None = None
    template: Mapping[str, Any] | None = None
    rendezvous: Rendezvous = Rendezvous()
    application: Limit = Limit()
    infrastructure: Limit = Limit()

    @property
    def minimum(self) -> int:
        """The fewest members that a round may have."""
        return self.replicas if self.min_replicas is None else self.min_replicas


@dataclass(frozen=True)
class Job:
    """Identity and wish."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: JobSpec


@dataclass(frozen=True)
class Exit:
    """How the training container ended. ``code`` is 128+n for a signal, as the kubelet says it."""

    code: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Pod:
    """A pod that bears the job's label.

    ``mine``: owned by this job (same UID), or the job has no template and the pod is somebody else's.
    ``slot`` is None where no label tells it. ``exit`` is the end of the training container;
    ``ended`` means that the pod is terminal (Succeeded or Failed) whatever its containers say.
    ``unschedulable`` is the scheduler's own sentence while it finds no node.
    """

    name: str
    uid: str
    mine: bool = True
    slot: int | None = None
    attempt: int = 0
    node: str = ""
    node_ready: bool = True
    node_gone: bool = False
    ip: str = ""
    running: bool = False
    ended: bool = False
    exit: Exit | None = None
    deleting: bool = False
    unschedulable: str = ""
    waiting: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Participant:
    """A pod's Lease. ``silent`` is for how many seconds the observer has seen no change of it, counted
    only while its own watch was good; ``problem`` says why a record can't be used."""

    pod: str
    holder: str
    record: ParticipantRecord | None = None
    failure: FailureReport | None = None
    report: RoundReport | None = None
    silent: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Observed:
    """What the informers know of one job. ``record`` is the round Lease's, if it is this job's
    (same UID) and can be read; ``leases`` are by pod name."""

    pods: tuple[Pod, ...] = ()
    leases: Mapping[str, Participant] = field(default_factory=dict)
    record: RoundRecord | None = None


@dataclass(frozen=True)
class Now:
    """``wall`` for what people read and for windows; ``mono`` (seconds) for every judgement.
    ``nonce`` is fresh randomness for this pass, used if it publishes a round."""

    wall: datetime
    mono: float
    nonce: str


@dataclass(frozen=True)
class CreatePod:
    """Make the pod of this slot and attempt. A name already taken is reported back as observed."""

    slot: int
    attempt: int


@dataclass(frozen=True)
class DeletePod:
    """Delete this very pod (UID precondition). ``force``: with grace period 0."""

    name: str
    uid: str
    why: str
    force: bool = False


@dataclass(frozen=True)
class DeleteLease:
    """Delete the Lease of a pod that is gone."""

    name: str


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the ElasticJob."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Plan:
    """What one pass decided.

    ``status``: to be written first if it differs from what is there. ``pod_names``: who may write a
    Lease (the Role's resourceNames). ``record``: the projection of ``status`` for the round Lease;
    ``actions`` in order. ``wake_after``: seconds until the next pass is due without any event, or None.
    ``timers``: the planner's memory of when it first saw what it waits for (monotonic); handed back
    with the next pass, lost without harm.
    """

    status: JobStatus
    record: RoundRecord
    pod_names: tuple[str, ...] = ()
    actions: tuple[CreatePod | DeletePod | DeleteLease, ...] = ()
    events: tuple[Event, ...] = ()
    wake_after: float | None = None
    timers: Mapping[str, float] = field(default_factory=dict)
