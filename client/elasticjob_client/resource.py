"""The ElasticJob as typed, immutable data, field by field as its definition has it.

Names are those of the definition in snake case (``currentRound`` is ``current_round``); a test compares both.
Unknown fields are ignored, so that a newer operator can be read; a field that is absent is None, or empty.
What is Kubernetes' own, such as the pod template, stays a dictionary.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from elasticjob.contract.names import API_VERSION, KIND
from elasticjob_client.decoding import ready

_T = TypeVar("_T")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all parts of an ElasticJob."""


class Metadata(_Part, frozen=True, kw_only=True):
    """Metadata, as far as it is used here."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Rendezvous(_Part, frozen=True, kw_only=True):
    """Time limits, in seconds, for forming rounds and for detecting lost members."""

    initial_last_call_timeout_seconds: int | None = None
    last_call_timeout_seconds: int | None = None
    rejoin_timeout_seconds: int | None = None
    establish_timeout_seconds: int | None = None
    heartbeat_period_seconds: int | None = None
    heartbeat_timeout_seconds: int | None = None
    stall_timeout_seconds: int | None = None


class Scaling(_Part, frozen=True, kw_only=True):
    """Which sizes rounds may have, and how the job follows a change of replicas."""

    sizes: list[int] | None = None
    multiple_of: int | None = None
    extra_priority_class_name: str = ""
    scale_up_delay_seconds: int | None = None
    payback_seconds: int | None = None


class Limit(_Part, frozen=True, kw_only=True):
    """Restarts allowed, within a window if there is one; absent: no limit."""

    max_restarts: int | None = None
    window_seconds: int | None = None


class FailureRule(_Part, frozen=True, kw_only=True):
    """An exception to the limits."""

    name: str
    action: str
    on_worker_exit_codes: list[int] | None = None
    on_pod_reasons: list[str] | None = None
    on_error_pattern: str | None = None


class Fencing(_Part, frozen=True, kw_only=True):
    """What must be known of a round before the next one begins."""

    type: str | None = None
    after_seconds: int | None = None


class FailurePolicy(_Part, frozen=True, kw_only=True):
    """When the job fails."""

    application: Limit | None = None
    infrastructure: Limit | None = None
    preemption: Limit | None = None
    rules: list[FailureRule] | None = None
    max_rounds_without_progress: int | None = None
    hang_timeout_seconds: int | None = None
    idle_deadline_seconds: int | None = None
    fencing: Fencing | None = None


class WarmWorkers(_Part, frozen=True, kw_only=True):
    """Whether interpreters that have imported torch wait beside the workers."""

    enabled: bool | None = None
    imports: list[str] | None = None


class MemoryCheckpoints(_Part, frozen=True, kw_only=True):
    """How much memory each pod has for checkpoints, and how many other pods have a copy."""

    per_pod: int | str
    copies: int | None = None
    spread: str | None = None


class Spec(_Part, frozen=True, kw_only=True):
    """What is wanted. The API server or the operator decides what is None."""

    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    spares: int | None = None
    nproc_per_node: int | str | None = None
    handler_source: str | None = None
    warm_workers: WarmWorkers | None = None
    memory_checkpoints: MemoryCheckpoints | None = None
    rendezvous: Rendezvous | None = None
    scaling: Scaling | None = None
    failure_policy: FailurePolicy | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    drain_seconds: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    clean_pod_policy: str | None = None
    network_policy: str | None = None
    gang_scheduling: str | None = None
    template: dict[str, Any] | None = None


class Condition(_Part, frozen=True, kw_only=True):
    """A condition; ``status`` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int | None = None


class RoundEnd(_Part, frozen=True, kw_only=True):
    """Why a round ended."""

    time: datetime | None = None
    cause: str = ""
    account: str = ""
    rule_name: str = ""
    message: str = ""
    detect_milliseconds: int | None = None
    drain: str = ""


class RoundDrain(_Part, frozen=True, kw_only=True):
    """The planned change for which a round drains."""

    start_time: datetime | None = None
    deadline_time: datetime | None = None
    cause: str = ""
    message: str = ""


class Crossings(_Part, frozen=True, kw_only=True):
    """How often the ring of ranks leaves a domain that this label of nodes names."""

    key: str
    domains: int
    crossings: int
    in_slot_order: int


class CurrentRound(_Part, frozen=True, kw_only=True):
    """The current round; between two rounds, the last one. Its number is 0 before the first."""

    number: int = 0
    phase: str = ""
    members: int = 0
    world_size: int | None = None
    leader_pod_name: str = ""
    start_time: datetime | None = None
    established_time: datetime | None = None
    cause: str = ""
    account: str = ""
    message: str = ""
    drain: RoundDrain | None = None
    end: RoundEnd | None = None
    fenced: bool = False
    crossings: list[Crossings] = []


class Participant(_Part, frozen=True, kw_only=True):
    """A pod whose agent has joined; a member if it has a group rank."""

    pod_name: str
    pod_uid: str = msgspec.field(name="podUID", default="")
    id: str = ""
    container_restarts: int = 0
    slot: int | None = None
    group_rank: int | None = None
    node_name: str = ""
    local_world_size: int | None = None
    state: str = ""
    message: str = ""


class WorkerStarts(_Part, frozen=True, kw_only=True):
    """How many workers of a round started warm, and how many cold and why."""

    warm: int = 0
    cold: int = 0
    cold_reason: str = ""


class Resumed(_Part, frozen=True, kw_only=True):
    """Where the state of a round came from; ``source`` is Memory, Peer, Storage or Nothing."""

    step: int
    source: str = msgspec.field(name="from", default="")
    redone_steps: int | None = None
    milliseconds: int = 0


class Round(_Part, frozen=True, kw_only=True):
    """A round of the history."""

    number: int
    members: int = 0
    start_time: datetime | None = None
    cause: str = ""
    rendezvous_milliseconds: int | None = None
    first_step_milliseconds: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    worker_starts: WorkerStarts | None = None
    resumed: Resumed | None = None
    end: RoundEnd | None = None


class Charge(_Part, frozen=True, kw_only=True):
    """A restart that was charged."""

    time: datetime | None = None
    cause: str = ""
    message: str = ""
    round: int | None = None
    pod_name: str = ""
    during_round: int | None = None
    counted_with: str = ""
    node_name: str = ""


class Account(_Part, frozen=True, kw_only=True):
    """Restarts of one kind of cause."""

    name: str
    used: int = 0
    max_restarts: int | None = None
    window_seconds: int | None = None
    charges: list[Charge] = []


class Failure(_Part, frozen=True, kw_only=True):
    """The most recent root failure."""

    time: datetime | None = None
    message: str = ""
    exit_code: int | None = None
    round: int | None = None
    group_rank: int | None = None
    pod_name: str = ""
    pod_uid: str = msgspec.field(name="podUID", default="")
    container_restarts: int = 0
    node_name: str = ""
    logs_command: str = ""


class ExcludedNode(_Part, frozen=True, kw_only=True):
    """A node that new pods avoid."""

    name: str
    until_time: datetime | None = None
    lifted_time: datetime | None = None
    message: str = ""


class IgnoredPod(_Part, frozen=True, kw_only=True):
    """A pod of which something is ignored."""

    pod_name: str
    message: str = ""


class LostTime(_Part, frozen=True, kw_only=True):
    """Time without progress, by the cause of the round that followed."""

    cause: str
    milliseconds: int = 0


class Progress(_Part, frozen=True, kw_only=True):
    """Progress of training, if the script reports it."""

    step: int | None = None
    last_report_time: datetime | None = None
    milliseconds_per_step: int | None = None
    goodput_percent: int | None = None
    lost_seconds: int | None = None
    lost_by_cause: list[LostTime] = []
    rounds_without_progress: int | None = None


class Status(_Part, frozen=True, kw_only=True):
    """What the operator says. Its field ``internal`` is left out."""

    observed_generation: int = -1
    conditions: list[Condition] = []
    start_time: datetime | None = None
    completion_time: datetime | None = None
    active_seconds: int | None = None
    terminal_state: str = ""
    replicas: int = 0
    selector: str = ""
    min_replicas: int | None = None
    restarts: int = 0
    current_round: CurrentRound = msgspec.field(default_factory=CurrentRound)
    participants: list[Participant] = []
    round_history: list[Round] = []
    accounts: list[Account] = []
    last_failure: Failure | None = None
    excluded_nodes: list[ExcludedNode] = []
    ignored_pods: list[IgnoredPod] = []
    progress: Progress | None = None
    omitted: str = ""


class ElasticJob(_Part, frozen=True, kw_only=True):
    """An ElasticJob. ``status`` is None until the operator has seen it."""

    metadata: Metadata
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status | None = None
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None if it is not there."""
        return next((c for c in self.status.conditions if c.type == kind), None) if self.status else None

    @property
    def state(self) -> str:
        """The column STATE of ``kubectl get``: the reason of the condition Training; "" without a status."""
        found = self.condition("Training")
        return found.reason if found else ""

    @property
    def ended(self) -> bool:
        """Complete or Failed, for good."""
        return bool(self.status and self.status.terminal_state)

    @property
    def members(self) -> list[Participant]:
        """Members of the current round, or of the last one, in the order of their group ranks."""
        found = [p for p in self.status.participants if p.group_rank is not None] if self.status else []
        return sorted(found, key=lambda p: p.group_rank or 0)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> ElasticJob:
        """Read it from what the API server says. Raises ValueError with the path of a field that is not as
        its definition has it."""
        return parse(found, cls)

    def to_dict(self) -> dict[str, Any]:
        """What can be applied: version, kind, metadata and spec, without what is empty."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        body.pop("status", None)
        return {"apiVersion": self.api_version, "kind": self.kind, **body}


def parse(found: dict[str, Any], kind: type[_T]) -> _T:
    """Typed data from a dictionary. Raises ValueError with the path of the field that is wrong."""
    try:
        return msgspec.convert(found, ready(kind))
    except msgspec.ValidationError as error:
        raise ValueError(f"not an ElasticJob as {API_VERSION} defines it: {error}") from error
