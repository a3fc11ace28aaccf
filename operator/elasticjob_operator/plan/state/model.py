"""The planner's view of the world: frozen data, no behaviour, no I/O.

``Observed`` is what the informers saw; times in it are durations judged by the observer's own
monotonic clock (I9). ``Plan`` is what is to be done about it, in order: write the status,
then access, then project the round, then pods, Leases and Events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.relay import RelayReport
from elasticjob.contract.reports import (
    DrainReport,
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob.contract.str_enum import StrEnum
from elasticjob.rounds.sizes import ANY, Sizes
from elasticjob.rounds.topology import Domains
from elasticjob.rounds.waits import Wait, WaitKey
from elasticjob_operator.plan.state.grant import Grant, QueueRequest
from elasticjob_operator.plan.state.status import JobStatus

WAIT_RENEW_SECONDS = 5
"""A pod that waits renews its Lease this often, unless many wait."""


@dataclass(frozen=True)
class Limit:
    """A restart budget: at most ``max_restarts`` charges in any ``window_seconds``. None is unlimited."""

    max_restarts: int | None = None
    window_seconds: int | None = None


class RuleAction(StrEnum):
    """What a failure rule does: end the job; charge as usual; charge nothing; keep off the node."""

    FAIL_JOB = "FailJob"
    RESTART = "Restart"
    IGNORE = "Ignore"
    EXCLUDE_NODE = "ExcludeNode"


@dataclass(frozen=True)
class Rule:
    """One of ``failurePolicy.rules``; exactly one of the three criteria is there. ``on_error_pattern`` is in
    the syntax of RE2, and is searched for in the worker's message."""

    name: str
    action: str
    on_worker_exit_codes: tuple[int, ...] = ()
    on_pod_reasons: tuple[str, ...] = ()
    on_error_pattern: str = ""


class HandlerSource(StrEnum):
    """Where pods have the rendezvous handler from."""

    INJECTED = "Injected"
    IMAGE = "Image"


class FencingType(StrEnum):
    """What has to be known of a round before the next one begins: that a member has stopped, or only that
    none was heard of for a while."""

    WAIT_FOR_PROOF = "WaitForProof"
    AFTER_SECONDS = "AfterSeconds"


class CleanPodPolicy(StrEnum):
    """Which pods are deleted at the end of the job."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class NetworkPolicy(StrEnum):
    """Which pods may connect to the job's pods."""

    JOB_ONLY = "JobOnly"
    NONE = "None"


class GangScheduling(StrEnum):
    """The kind of PodGroup by which the scheduler places a job's first pods together: that of Kubernetes, of
    the plugin Coscheduling (scheduler-plugins), or of Volcano."""

    NONE = "None"
    KUBERNETES = "Kubernetes"
    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"


@dataclass(frozen=True)
class WarmWorkers:
    """Whether interpreters that have imported torch, and the modules ``imports``, wait beside the workers."""

    enabled: bool = True
    imports: tuple[str, ...] = ()


class CopySpread(StrEnum):
    """Where the copies of memory checkpoints go: to pods on another node, or to any pod."""

    NODE = "Node"
    NONE = "None"


@dataclass(frozen=True)
class MemoryCheckpoints:
    """How many bytes of checkpoints each pod may hold in memory, and how many other pods have a copy."""

    per_pod: int
    """1 or more."""
    copies: int = 1
    spread: str = CopySpread.NODE


@dataclass(frozen=True)
class JobSpec:
    """``spec``, with what is absent made explicit. ``template`` is None when the operator does not create the
    pods, ``warm_workers`` when that is left to the pods, ``memory_checkpoints`` when there are none.
    ``replicas`` is one of the ``sizes``; ``beyond_size`` of the ``spares`` are replicas beyond it.
    ``extra_priority_class``: of pods beyond ``least``.
    ``fencing_needs_proof``: also of a round whose checkpoints are fenced. Times are seconds, None is
    never."""

    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    spares: int = 0
    sizes: Sizes = ANY
    beyond_size: int = 0
    extra_priority_class: str = ""
    nproc_per_node: str | None = None
    template: Mapping[str, Any] | None = None
    handler_source: str = HandlerSource.INJECTED
    warm_workers: WarmWorkers | None = None
    memory_checkpoints: MemoryCheckpoints | None = None
    limits: Limits = Limits()
    scale_up_delay: int = 10
    payback: int | None = None
    drain_seconds: int = 30
    application: Limit = Limit(5, 3600)
    infrastructure: Limit = Limit()
    preemption: Limit = Limit()
    rules: tuple[Rule, ...] = ()
    max_rounds_without_progress: int | None = None
    idle_deadline: int | None = None
    fencing_after: int | None = None
    fencing_needs_proof: bool = False
    suspend: bool = False
    active_deadline: int | None = None
    ttl_after_finished: int | None = None
    clean_pod_policy: str = CleanPodPolicy.RUNNING
    network_policy: str = NetworkPolicy.JOB_ONLY
    gang_scheduling: str = GangScheduling.NONE

    @property
    def pods(self) -> int:
        """How many pods are wanted: replicas, and spares that stand by."""
        return self.replicas + self.spares

    @property
    def least(self) -> int:
        """How many pods the job does not train without."""
        return self.replicas if self.min_replicas is None else min(self.min_replicas, self.replicas)


@dataclass(frozen=True)
class Job:
    """Identity and wish. ``finalizers`` are those that keep a job which is being deleted; none for any
    other. ``queue``: the one that the job's labels ask for. ``grant``: what a queue lets it have, to which
    ``spec`` is limited; None where no queue decides."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: JobSpec
    finalizers: tuple[str, ...] = ()
    queue: QueueRequest | None = None
    grant: Grant | None = None

    @property
    def key(self) -> str:
        """Namespace and name, as people write them."""
        return f"{self.namespace}/{self.name}"


OOM_KILLED = "OOMKilled"
"""The kubelet's reason for the end of a container that had no memory left."""


@dataclass(frozen=True)
class Exit:
    """How the training container ended. ``code`` is 128+n for a signal, as the kubelet says it; ``message``
    the last lines of its log, or what it has left for the kubelet; ``finished`` when it ended, in whole
    seconds by its node's clock."""

    code: int
    reason: str = ""
    message: str = ""
    finished: datetime | None = None


@dataclass(frozen=True)
class Pod:
    """A pod that has the job's label.

    ``of_this_job``: this job owns it (same UID), or has no template and takes all pods with its label.
    ``slot`` is None where no label tells it; of a pod that the operator has made its name tells, and
    ``mislabeled`` are the labels that say something else. ``exit`` is the end of the training container, or
    of the init container ``failed_init`` that has kept it from starting; ``ended`` means that the pod is
    terminal (Succeeded or Failed) also if its containers say otherwise; ``last_exit`` is how the training
    container ended before it was restarted in place, ``restarts`` how often it was. ``unschedulable`` has the
    words of the scheduler while it finds no node. ``sidecar_running`` means that another container, no init
    container, has not ended and keeps the pod from ending. ``disruption`` is the reason of the condition
    DisruptionTarget, which says what takes the pod away. ``drain_seconds``: for how long its preStop hook
    keeps its workers alive once it is deleted; 0 without the hook. ``replace_seconds``: for how many of them
    the next pod may be waited for before the round drains, counted from ``deletion_time``, by the API
    server's clock. ``avoids`` are the nodes that its affinity keeps it off; ``labels`` those of
    ``KEPT_LABELS`` that it has. ``unreachable`` and ``out_of_service`` are taints of its node; ``notice`` is
    the key of one that says that the node is about to go, and that the pod does not tolerate.
    ``member_gate``: of a pod with the readiness gate for members, whether that is open. ``created``: by the
    API server's clock. ``group``: the PodGroup with which its scheduler places it."""

    name: str
    uid: str
    of_this_job: bool = True
    slot: int | None = None
    attempt: int = 0
    mislabeled: str = ""
    node: str = ""
    node_ready: bool = True
    node_gone: bool = False
    unreachable: bool = False
    out_of_service: bool = False
    notice: str = ""
    ip: str = ""
    running: bool = False
    ended: bool = False
    sidecar_running: bool = False
    exit: Exit | None = None
    last_exit: Exit | None = None
    restarts: int = 0
    failed_init: str = ""
    deleting: bool = False
    deletion_time: datetime | None = None
    drain_seconds: int = 0
    replace_seconds: int = 0
    unschedulable: str = ""
    waiting: str = ""
    reason: str = ""
    message: str = ""
    disruption: str = ""
    avoids: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    member_gate: bool | None = None
    created: datetime | None = None
    group: str = ""

    @property
    def exited_well(self) -> bool:
        """Whether its training container has ended with exit code 0."""
        return self.exit is not None and self.exit.code == 0


@dataclass(frozen=True)
class Participant:
    """A pod's Lease. ``silent`` is for how many seconds the observer has seen no change of it, counted
    only while its own watch was good; ``renewed`` is for how many there was none, infinity if that watch has
    shown none yet, None for as many as ``silent``. ``problem`` says why a record can't be used,
    ``report_unreadable`` that the report is such a one. ``finished`` is the nonce of the last round that a
    torchrun of this pod has finished well: also one that has ended since; ``fenced`` that of the round whose
    checkpoints are fenced, as its leader says. ``relay`` is what it has from members that cannot write."""

    pod: str
    holder: str
    record: ParticipantRecord | None = None
    failure: FailureReport | None = None
    report: RoundReport | None = None
    silent: float = 0.0
    problem: str = ""
    progress: ProgressReport | None = None
    report_unreadable: bool = False
    finished: str = ""
    drain: DrainReport | None = None
    starts: StartsReport | None = None
    fenced: str = ""
    relay: RelayReport | None = None
    resumed: ResumedReport | None = None
    renewed: float | None = None


@dataclass(frozen=True)
class FailingWrite:
    """A write that keeps failing: ``name`` cannot be ``verb``, and the API server's words for it."""

    name: str
    verb: str
    why: str


@dataclass(frozen=True)
class Observed:
    """What the informers know of one job. ``record`` is the round Lease's, if it is this job's
    (same UID) and can be read; ``member_list_round`` the round of its member list, 0 without one; ``leases``
    are by pod name. ``nodes`` are the names of the nodes that are ready, None where they can't be seen.
    ``failing_writes`` are the operator's writes for this job that were rejected or fail. ``waiting`` is how
    many participants of all jobs wait for a round, and ``renew_seconds`` the interval at which this job's
    renew their Leases meanwhile: the longest that any of them may still go by. ``uncounted`` says that
    pods run one worker although they may have more GPUs (``accelerators``). ``account_made``: when the
    job's own service account was made, by the API server's clock; None without one, or if it can't be seen.
    ``domains``: where each node is in the network, coarse to fine (``label=value``, or ""). ``fixed_gang``:
    how many pods its PodGroup gathers, once that is fixed. ``removed``: gone pods of any job, by UID."""

    pods: tuple[Pod, ...] = ()
    leases: Mapping[str, Participant] = field(default_factory=dict)
    record: RoundRecord | None = None
    nodes: frozenset[str] | None = None
    failing_writes: tuple[FailingWrite, ...] = ()
    waiting: int = 0
    renew_seconds: int = WAIT_RENEW_SECONDS
    member_list_round: int = 0
    uncounted: str = ""
    account_made: datetime | None = None
    domains: Mapping[str, Domains] = field(default_factory=dict)
    fixed_gang: int | None = None
    removed: Mapping[str, Pod] = field(default_factory=dict)

    @cached_property
    def rejected_pods(self) -> frozenset[str]:
        """The pods that the API server would not make."""
        return frozenset(write.name for write in self.failing_writes if write.verb == "created")


@dataclass(frozen=True)
class Now:
    """``wall`` for what people read and for windows; ``mono`` (seconds) for every judgement.
    ``nonce`` is fresh randomness for this pass, used if it publishes a round."""

    wall: datetime
    mono: float
    nonce: str


@dataclass(frozen=True)
class Target:
    """What a write is for, in words: ``name`` cannot be ``verb``. ``protocol``: rounds wait for it."""

    name: str
    verb: str
    protocol: bool = False


@dataclass(frozen=True)
class CreatePod:
    """Make the pod of this slot and attempt, kept off some nodes. A name already taken is reported back as
    observed."""

    name: str
    slot: int
    attempt: int
    avoid: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """What the write is for."""
        return Target(self.name, "created")


@dataclass(frozen=True)
class DeletePod:
    """Delete this very pod (UID precondition). ``force``: with grace period 0."""

    name: str
    uid: str
    why: str
    force: bool = False

    @property
    def target(self) -> Target:
        """What the write is for."""
        return Target(self.name, "deleted")


@dataclass(frozen=True)
class PodCondition:
    """A condition of a pod's status, as the operator sets it."""

    type: str
    met: bool
    reason: str


@dataclass(frozen=True)
class PatchPod:
    """Change this very pod (UID precondition): its labels, where None takes one off, or a condition of its
    status. All labels of a pod are in one of these."""

    name: str
    uid: str
    labels: tuple[tuple[str, str | None], ...] = ()
    condition: PodCondition | None = None

    @property
    def target(self) -> Target:
        """What the write is for."""
        return Target(self.name, "labelled" if self.condition is None else "given its condition")


@dataclass(frozen=True)
class DeleteJob:
    """Delete the ElasticJob itself (UID precondition): its time to live is over."""

    why: str

    @property
    def target(self) -> Target:
        """What the write is for."""
        return Target("the ElasticJob", "deleted")


@dataclass(frozen=True)
class DeleteLease:
    """Delete the Lease of a pod that is gone."""

    name: str

    @property
    def target(self) -> Target:
        """What the write is for."""
        return Target(f"Lease {self.name}", "deleted")


Action = CreatePod | DeletePod | PatchPod | DeleteLease | DeleteJob
"""What a plan may ask for beside its two records."""

VERBS = ("created", "deleted", "labelled", "given its condition")
"""Of the actions' targets."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the ElasticJob, and a line of the log. ``frequent``: there may be very many of
    its kind. ``pod`` and ``cause``, where it is about one, are fields of the log's line."""

    reason: str
    message: str
    warning: bool = False
    frequent: bool = False
    pod: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Plan:
    """What one pass decided.

    ``status``: to be written first if it differs from what is there. ``pod_names``: the pods that may write a
    Lease (the Role's resourceNames). ``record``: the projection of ``status`` for the round Lease, and
    ``members`` that for the Lease of a large round's member list, to be written before it;
    ``actions`` in order. ``wake_after``: seconds until the next pass is due without any event, or None.
    ``waits``: what is waited for, those that end first in front. ``timers``: when each wait began
    (monotonic); handed back with the next pass, lost without harm. ``waiting``: how many of this job's
    participants wait for a round. ``judged_silent``: the pods against which it is used that they have not
    renewed their Leases. ``judged_unheard``: those that are judged by what has not been heard of them. All of
    them may have spoken, and our watch be late or dead: before it is carried out, the job's pods and Leases
    are listed and it is planned again; for the silent once for each version of their Leases, for the others
    always. ``rights_in_doubt``: members of the running round seem to be unable to write.
    """

    status: JobStatus
    record: RoundRecord
    members: MemberList | None = None
    pod_names: frozenset[str] = frozenset()
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    wake_after: float | None = None
    waits: tuple[Wait, ...] = ()
    timers: Mapping[WaitKey, float] = field(default_factory=dict)
    waiting: int = 0
    judged_silent: tuple[str, ...] = ()
    judged_unheard: tuple[str, ...] = ()
    rights_in_doubt: bool = False
