"""Pods, Leases and Nodes as the operator keeps them: reduced, frozen, and interpreted once when they arrive.

An object of the API server has 2 to 10 KB of JSON, of which the planner needs a few fields. It is read once.
A change of anything else is ignored (``==`` ignores the version) and starts no pass.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from elasticjob.contract.fields import MAX_ID, RecordError
from elasticjob.contract.names import (
    ATTEMPT_LABEL,
    AVOID_NODES_ANNOTATION,
    COMPLETION_INDEX_LABEL,
    DRAIN_ANNOTATION,
    DRAIN_HOOK_ANNOTATION,
    FAILURE_ANNOTATION,
    FENCED_ANNOTATION,
    FINISHED_ANNOTATION,
    JOB_LABEL,
    KIND,
    MEMBER_CONDITION,
    MEMBERS_ANNOTATION,
    PARTICIPANT_ANNOTATION,
    POD_INDEX_LABEL,
    PROGRESS_ANNOTATION,
    RELAY_ANNOTATION,
    REPLACE_SECONDS_ANNOTATION,
    REPORT_ANNOTATION,
    ROUND_ANNOTATION,
    SLOT_LABEL,
    STANDBY_LABEL,
    STARTS_ANNOTATION,
    members_lease,
    round_lease,
    slot_and_attempt,
)
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.relay import RelayReport
from elasticjob.contract.reports import (
    MAX_MESSAGE,
    MAX_REASON,
    DrainReport,
    FailureReport,
    ProgressReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MAX_ROUND_BYTES, MemberList, RoundRecord
from elasticjob.contract.text import is_token, last_words, one_line
from elasticjob_operator.plan.state.model import OOM_KILLED, Exit, Participant, Pod
from elasticjob_operator.plan.template.containers import training_container

UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
ZONE_LABEL = "topology.kubernetes.io/zone"

_KEEPS_PODS_AWAY = ("NoSchedule", "NoExecute")
_TOLERATED_BY_ALL = ("node.kubernetes.io/not-ready", UNREACHABLE_TAINT)
"""Tolerations of these keys are added to every pod on its admission."""

_MAX_TEXT = 1_024
"""Characters kept of any message that another component wrote."""
_MAX_LAST_WORDS = 300
"""Characters kept of the end of a container's log."""
_MAX_INDEX = 1_000_000
_MAX_KEPT = 1_024
"""Characters of an annotation that are kept to know it again; of a longer one a digest is."""
_MAX_AVOIDS = 100
_MAX_TOLERATIONS = 100
_MAX_NAME = 253
_ROUND_SUFFIX = round_lease("")
_ROUNDS_READ = 64
_STARTING = ("ContainerCreating", "PodInitializing", "")


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
class SeenPod(Seen):
    """A labelled pod. ``owner`` is the UID of its controller, ``made`` whether that is an ElasticJob and the
    name is one that the operator gives to its pods; ``pod`` leaves out what depends on others: whose it is,
    and its node's state."""

    owner: str
    made: bool
    service_account: str
    pod: Pod
    tolerations: tuple[Toleration, ...] = ()


class Texts(NamedTuple):
    """The annotations of a Lease by which it is known again: those in ``_TEXTS``."""

    participant: str | None
    failure: str | None
    report: str | None
    round: str | None
    finished: str | None
    drain: str | None
    fenced: str | None
    relay: str | None


_TEXTS = (
    *(PARTICIPANT_ANNOTATION, FAILURE_ANNOTATION, REPORT_ANNOTATION, ROUND_ANNOTATION, FINISHED_ANNOTATION),
    *(DRAIN_ANNOTATION, FENCED_ANNOTATION, RELAY_ANNOTATION),
)


@dataclass(frozen=True, slots=True)
class SeenLease(Seen):
    """A labelled Lease: a participant's, the round's, or that of its members (``listed`` says of which round:
    job UID, number, nonce). ``texts`` are its annotations, to know them again: long ones as digests, but for
    the round's of a round's Lease. ``news`` is what starts a pass, as is another ``round_digest``. One that
    can't be read and then says something else that can't be read is no news, however often. Progress is none
    but the first of a round, and of how workers started only whether more is prepared: both ride on other
    writes (``rider_texts``).

    A tenant may have thousands of Leases, and one whose name is free may say anything. What is kept of one
    takes no more memory than its text."""

    owner: str
    holder: str
    texts: Texts = field(compare=False)
    news: Participant
    progress_nonce: str
    rider_texts: tuple[str | None, str | None] = field(compare=False)
    participant: Participant = field(compare=False)
    round_digest: str
    """Of what can be read of the round; empty where nothing can."""
    problem: str = field(compare=False)
    listed: tuple[str, int, str] = ("", 0, "")

    @property
    def record(self) -> RoundRecord | None:
        """The round's; None where there is none, or it can't be read."""
        text = self.texts.round
        return _round(text)[0] if self.round_digest and text is not None else None


@dataclass(frozen=True, slots=True)
class SeenNode(Seen):
    """A node. ``unreachable`` and ``out_of_service`` are taints: the control plane puts the first there when
    it has not heard of the kubelet for a while; a person or a controller that knows that the machine is off
    sets the second. ``notices`` are the taints that say that the node is about to go."""

    ready: bool
    unreachable: bool = False
    out_of_service: bool = False
    notices: tuple[Taint, ...] = ()
    zone: str = ""


@dataclass(frozen=True, slots=True)
class SeenAccount(Seen):
    """The service account of a job, of which ``owner`` is the UID, and when it was ``made``."""

    owner: str
    made: datetime | None


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a pod tolerates. An empty ``key`` or ``effect`` is any; ``value`` None: any."""

    key: str
    value: str | None
    effect: str

    def covers(self, taint: Taint) -> bool:
        """Whether the taint keeps no pod with it away."""
        return (
            self.key in ("", taint.key)
            and self.value in (None, taint.value)
            and self.effect in ("", taint.effect)
        )


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that says that its node is about to go."""

    key: str
    value: str
    effect: str


T = TypeVar("T", bound=Seen)
R = TypeVar("R")

SECONDS_TO_END = 10
"""Of a pod's grace period: from the end of a drain until its processes have ended."""


def read_pod(raw: Mapping[str, Any], _old: SeenPod | None = None) -> SeenPod:
    """Slim a Pod."""
    meta, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    labels = _map(meta, "labels")
    name, uid = str(meta.get("name", "")), str(meta.get("uid", ""))
    labelled = _first_index(labels, SLOT_LABEL, COMPLETION_INDEX_LABEL, POD_INDEX_LABEL)
    slot, attempt, mislabeled = labelled, _first_index(labels, ATTEMPT_LABEL) or 0, ""
    made = slot_and_attempt(_elasticjob_of(meta), name)
    if made is not None:
        slot, attempt = made  # labels can be changed, a name cannot
        mislabeled = ", ".join(
            f"{key}={_text(labels.get(key)) or 'none'}"
            for key, value in ((SLOT_LABEL, slot), (ATTEMPT_LABEL, attempt))
            if labels.get(key) != str(value)
        )
    container = training_container(meta, spec)
    state = _state(status, container)
    phase = str(status.get("phase", ""))
    failed_init = _failed_init(status, state)
    conditions = {str(c.get("type")): c for c in _maps(status, "conditions")}
    disruption = conditions.get("DisruptionTarget", {})
    disrupted = disruption if disruption.get("status") == "True" else {}
    return SeenPod(
        namespace=str(meta.get("namespace", "")),
        name=name,
        uid=uid,
        job=str(labels.get(JOB_LABEL, "")),
        version=version_of(meta),
        owner=controller_of(meta),
        made=made is not None,
        service_account=str(spec.get("serviceAccountName") or "default"),
        tolerations=_tolerations(spec),
        pod=Pod(
            name=name,
            uid=uid,
            slot=slot,
            attempt=attempt,
            mislabeled=mislabeled,
            node=str(spec.get("nodeName") or ""),
            ip=_address(status),
            running=phase == "Running" and (state is None or "running" in state),
            ended=phase in ("Succeeded", "Failed"),
            sidecar_running=_sidecar_running(status, container),
            exit=_exit(state) or failed_init[1],
            failed_init=failed_init[0],
            last_exit=_exit(_state(status, container, "lastState")),
            restarts=_restarts(status, container),
            deleting=bool(meta.get("deletionTimestamp")),
            deletion_time=_deletion_time(meta),
            drain_seconds=_drain_seconds(meta, spec),
            replace_seconds=_replace_seconds(meta, spec),
            unschedulable=_unschedulable(conditions.get("PodScheduled", {})),
            waiting=_waiting(status, container),
            reason=_text(status.get("reason") or disrupted.get("reason")),
            message=_text(status.get("message") or disrupted.get("message")),
            disruption=_text(disrupted.get("reason")),
            avoids=_avoids(_map(meta, "annotations")),
            standby=STANDBY_LABEL in labels,
            member_gate=_member_gate(spec, conditions),
            created=_time(meta.get("creationTimestamp")),
        ),
    )


def _member_gate(spec: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> bool | None:
    gates = (raw.get("conditionType") for raw in _maps(spec, "readinessGates"))
    if MEMBER_CONDITION not in gates:
        return None
    return conditions.get(MEMBER_CONDITION, {}).get("status") == "True"


def _tolerations(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    """Without those that every pod has. One with ``tolerationSeconds`` counts, too: schedulers go by it. Of
    more than ``_MAX_TOLERATIONS`` the first are kept: a pod may have fifty thousand."""
    found = (raw for raw in _maps(spec, "tolerations") if raw.get("key") not in _TOLERATED_BY_ALL)
    return tuple(
        Toleration(
            _text(raw.get("key")),
            None if raw.get("operator") == "Exists" else _text(raw.get("value")),
            _text(raw.get("effect")),
        )
        for raw in itertools.islice(found, _MAX_TOLERATIONS)
    )


def _drain_seconds(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """How long the preStop hook may keep the workers alive: the grace period, which ``kubectl delete
    --grace-period`` may have made shorter, without what processes need to end."""
    if _map(meta, "annotations").get(DRAIN_HOOK_ANNOTATION) != "true":
        return 0
    given = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    return max(0, given - SECONDS_TO_END) if isinstance(given, int) else 0


def _replace_seconds(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """How long the hook waits while the next pod starts, of the time that a shorter grace period has left."""
    said = str(_map(meta, "annotations").get(REPLACE_SECONDS_ANNOTATION, ""))
    if not (said.isascii() and said.isdigit() and len(said) < 6):
        return 0
    whole, left = spec.get("terminationGracePeriodSeconds"), meta.get("deletionGracePeriodSeconds")
    shorter = whole - left if isinstance(whole, int) and isinstance(left, int) else 0
    return max(0, int(said) - max(0, shorter))


def _deletion_time(meta: Mapping[str, Any]) -> datetime | None:
    """When it was deleted: its deletionTimestamp is when its grace period ends."""
    until, grace = _time(meta.get("deletionTimestamp")), meta.get("deletionGracePeriodSeconds")
    try:
        return until - timedelta(seconds=grace) if until is not None and isinstance(grace, int) else until
    except OverflowError:  # the API server takes any grace period
        return None


def read_lease(raw: Mapping[str, Any], old: SeenLease | None = None) -> SeenLease:
    """Slim a Lease. Texts that ``old`` had are not parsed again. Never raises, whatever they contain."""
    meta, spec = _map(raw, "metadata"), _map(raw, "spec")
    annotations = _map(meta, "annotations")
    name, uid = str(meta.get("name", "")), str(meta.get("uid", ""))
    holder = _kept(str(spec.get("holderIdentity") or "")) or ""
    job = str(_map(meta, "labels").get(JOB_LABEL, ""))
    is_round = name.endswith(_ROUND_SUFFIX)
    given = Texts(*(_optional(annotations.get(key)) for key in _TEXTS))
    limits = (MAX_ROUND_BYTES if is_round and key == ROUND_ANNOTATION else _MAX_KEPT for key in _TEXTS)
    texts = Texts(*map(_kept, given, limits))
    riders = _optional(annotations.get(PROGRESS_ANNOTATION)), _optional(annotations.get(STARTS_ANNOTATION))
    rider_texts = _kept(riders[0]), _kept(riders[1])
    if old is not None and old.uid == uid and old.texts == texts and old.holder == holder:
        participant, digest, problem = old.participant, old.round_digest, old.problem
        if rider_texts != old.rider_texts:
            participant = _with_riders(_participant(name, holder, given), *riders)
    else:
        participant = _with_riders(_participant(name, holder, given), *riders)
        record, problem = _round(given.round) if is_round and given.round is not None else (None, "")
        digest = "" if record is None else blake2b(record.dump().encode(), digest_size=16).hexdigest()
    return SeenLease(
        namespace=str(meta.get("namespace", "")),
        name=name,
        uid=uid,
        job=job,
        version=version_of(meta),
        owner=controller_of(meta) or first_owner_of(meta),
        holder=holder,
        texts=texts,
        news=_news(participant),
        progress_nonce=participant.progress.nonce if participant.progress is not None else "",
        rider_texts=rider_texts,
        participant=participant,
        round_digest=digest,
        problem=problem,
        listed=_listed(meta, annotations.get(MEMBERS_ANNOTATION)),
    )


def _listed(meta: Mapping[str, Any], text: object) -> tuple[str, int, str]:
    """Which round's member list this is. Of other Leases the annotation is not read: its size is theirs."""
    name = str(meta.get("name", ""))
    if not isinstance(text, str) or name != members_lease(str(_map(meta, "labels").get(JOB_LABEL, ""))):
        return ("", 0, "")
    try:
        return MemberList.parse(text).head
    except RecordError:
        return ("", 0, "")


def read_node(
    raw: Mapping[str, Any], _old: SeenNode | None = None, *, notices: Collection[str] = ()
) -> SeenNode:
    """Slim a Node. One without a Ready condition is taken for ready: nothing speaks against it yet.

    ``notices`` are the keys of taints that say that a node is about to go. A mere preference of schedulers
    (PreferNoSchedule) says that it may.
    """
    meta = _map(raw, "metadata")
    ready = next((c for c in _maps(_map(raw, "status"), "conditions") if c.get("type") == "Ready"), None)
    taints = {str(taint.get("key")) for taint in _maps(_map(raw, "spec"), "taints")}
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
            Taint(str(taint["key"]), _text(taint.get("value")), str(taint["effect"]))
            for taint in _maps(_map(raw, "spec"), "taints")
            if taint.get("key") in notices and taint.get("effect") in _KEEPS_PODS_AWAY
        ),
        zone=sys.intern(_text(_map(meta, "labels").get(ZONE_LABEL))),
    )


def read_account(raw: Mapping[str, Any], old: SeenAccount | None = None) -> SeenAccount:
    """Slim a ServiceAccount."""
    del old
    meta = _map(raw, "metadata")
    return SeenAccount(
        namespace=str(meta.get("namespace", "")),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        job=str(_map(meta, "labels").get(JOB_LABEL, "")),
        version=version_of(meta),
        owner=first_owner_of(meta),
        made=_time(meta.get("creationTimestamp")),
    )


def version_of(meta: Mapping[str, Any]) -> int:
    """The resourceVersion as a number, 0 where it is none."""
    text = str(meta.get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0


def controller_of(meta: Mapping[str, Any]) -> str:
    """UID of the controlling owner, or empty."""
    owners = (str(o.get("uid", "")) for o in _maps(meta, "ownerReferences") if o.get("controller"))
    return _kept(next(owners, "")) or ""


def _elasticjob_of(meta: Mapping[str, Any]) -> str:
    """The name of the ElasticJob that is the controlling owner, or empty."""
    owners = (o for o in _maps(meta, "ownerReferences") if o.get("controller") and o.get("kind") == KIND)
    return next((str(o.get("name", "")) for o in owners), "")


def first_owner_of(meta: Mapping[str, Any]) -> str:
    """UID of the first owner, or empty."""
    return _kept(next((str(o.get("uid", "")) for o in _maps(meta, "ownerReferences")), "")) or ""


def _participant(name: str, holder: str, texts: Texts) -> Participant:
    problems: list[str] = []

    def parsed(text: str | None, parse: Callable[[str], R]) -> R | None:
        try:
            return None if text is None else parse(text)
        except RecordError as error:
            problems.append(str(error))
            return None

    record = parsed(texts.participant, ParticipantRecord.parse)
    failure = parsed(texts.failure, FailureReport.parse)
    report = parsed(texts.report, RoundReport.parse)
    if report is not None and report.message:
        report = replace(report, message=one_line(report.message, MAX_MESSAGE))
    drain = parsed(texts.drain, DrainReport.parse)
    relay = parsed(texts.relay, RelayReport.parse)
    return Participant(
        pod=name,
        holder=holder,
        record=record,
        failure=failure,
        report=report,
        problem=_text("; ".join(problems)),
        report_unreadable=report is None and texts.report is not None,
        finished=_nonce(texts.finished),
        drain=drain,
        fenced=_nonce(texts.fenced),
        relay=relay,
    )


def _nonce(text: str | None) -> str:
    return text if text is not None and is_token(text, MAX_ID) else ""


def _with_riders(participant: Participant, progress: str | None, starts: str | None) -> Participant:
    problems = [participant.problem] if participant.problem else []
    try:
        participant = replace(
            participant, progress=None if progress is None else ProgressReport.parse(progress)
        )
    except RecordError as error:
        problems.append(str(error))
    try:
        report = None if starts is None else StartsReport.parse(starts)
        if report is not None and report.cold_reason:
            report = replace(report, cold_reason=one_line(report.cold_reason, MAX_REASON))
        participant = replace(participant, starts=report)
    except RecordError as error:
        problems.append(str(error))
    return replace(participant, problem=_text("; ".join(problems)))


def _news(participant: Participant) -> Participant:
    if participant.progress is None and participant.starts is None and not participant.problem:
        return participant
    starts = participant.starts
    if starts is not None:
        starts = StartsReport(starts.nonce, preparing=True) if starts.preparing else None
    return replace(
        participant, problem="ignored" if participant.problem else "", progress=None, starts=starts
    )


@lru_cache(maxsize=_ROUNDS_READ)
def _round(text: str) -> tuple[RoundRecord | None, str]:
    try:
        return RoundRecord.parse(text), ""
    except RecordError as error:
        return None, _text(str(error))


def _state(status: Mapping[str, Any], container: str, which: str = "state") -> Mapping[str, Any] | None:
    """The state of the container, None while no status of any container is there."""
    statuses = _maps(status, "containerStatuses")
    if not statuses:
        return None
    return next((_map(s, which) for s in statuses if s.get("name") == container), {})


def _restarts(status: Mapping[str, Any], container: str) -> int:
    """How often the container was restarted in its pod."""
    counts = (s.get("restartCount") for s in _maps(status, "containerStatuses") if s.get("name") == container)
    return next((count for count in counts if isinstance(count, int)), 0)


def _sidecar_running(status: Mapping[str, Any], container: str) -> bool:
    """Whether another container has not ended. Init containers that run on (restartPolicy Always) are ended
    by the kubelet when the others have."""
    others = (s for s in _maps(status, "containerStatuses") if s.get("name") != container)
    return any("terminated" not in _map(s, "state") for s in others)


def _exit(state: Mapping[str, Any] | None) -> Exit | None:
    if state is None or "terminated" not in state:
        return None
    end = _map(state, "terminated")
    code, reason = end.get("exitCode"), _text(end.get("reason"))
    if code == 0 and reason == OOM_KILLED:
        reason = "Completed"  # containerd's mark stays from a process that was killed while the container ran
    return Exit(
        code=code if isinstance(code, int) else -1,
        reason=reason,
        message=last_words(str(end.get("message") or ""), _MAX_LAST_WORDS),
        finished=_time(end.get("finishedAt")),
    )


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _waiting(status: Mapping[str, Any], container: str) -> str:
    """Why a container can't start (the training container's reason first), empty while all is well."""
    statuses = _maps(status, "containerStatuses") + _maps(status, "initContainerStatuses")
    for found in sorted(statuses, key=lambda s: s.get("name") != container):
        waiting = _map(_map(found, "state"), "waiting")
        reason = _text(waiting.get("reason"))
        if reason not in _STARTING:
            message = _text(waiting.get("message"))
            return f"{reason}: {message}" if message else reason
    return ""


def _failed_init(status: Mapping[str, Any], training: Mapping[str, Any] | None) -> tuple[str, Exit | None]:
    """Which init container has ended a pod before its training container could start, and how."""
    if status.get("phase") != "Failed" or (training and "waiting" not in training):
        return "", None
    for found in _maps(status, "initContainerStatuses"):
        end = _exit(_map(found, "state"))
        if end is not None and end.code != 0:
            return _text(found.get("name")), end
    return "", None


def _unschedulable(condition: Mapping[str, Any]) -> str:
    if condition.get("status") != "False" or condition.get("reason") not in (
        "Unschedulable",
        "SchedulingGated",
    ):
        return ""
    return _text(condition.get("message") or condition.get("reason"))


def _avoids(annotations: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that the operator keeps the pod off. Users who may change the pod may write here, too."""
    text = annotations.get(AVOID_NODES_ANNOTATION)
    names = text.split(",", _MAX_AVOIDS)[:_MAX_AVOIDS] if isinstance(text, str) else []
    return tuple(sorted(name for name in names if is_token(name, _MAX_NAME)))


def _address(status: Mapping[str, Any]) -> str:
    addresses = _maps(status, "podIPs")
    return str(addresses[0].get("ip", "")) if addresses else str(status.get("podIP") or "")


def _first_index(labels: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        text = str(labels.get(name, ""))
        if text.isascii() and text.isdigit() and int(text[:9]) < _MAX_INDEX:
            return int(text[:9])
    return None


def _map(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    return value if isinstance(value, dict) else {}


def _maps(fields: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = fields.get(key)
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return one_line(str(value or ""), _MAX_TEXT)


def _kept(text: str | None, longest: int = _MAX_KEPT) -> str | None:
    """What is kept of an annotation: a pod may write 256 KiB of them, and a cluster has many pods."""
    if text is None or len(text) <= longest:
        return text
    return f"{len(text)} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) else None
