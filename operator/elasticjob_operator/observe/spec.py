"""Reads an ElasticJob from JSON into the planner's types.

The API server has applied the schema's defaults and has checked types. Reading is still tolerant (an older
schema, a field that this version does not know): a value that cannot be used counts as not set.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from elasticjob.contract import quantity
from elasticjob.contract.limits import Limits
from elasticjob.rounds.sizes import Sizes
from elasticjob_operator.observe.fields import version_of
from elasticjob_operator.observe.packed_template import PackedTemplate, TemplateTooLarge
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.grant import QueueRequest
from elasticjob_operator.plan.state.model import (
    CleanPodPolicy,
    CopySpread,
    FencingType,
    GangScheduling,
    HandlerSource,
    Job,
    JobSpec,
    Limit,
    MemoryCheckpoints,
    NetworkPolicy,
    Rule,
    RuleAction,
    WarmWorkers,
)
from elasticjob_operator.plan.state.sized import sized
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.plan.state.status_json import VERSION, StatusTooNewError

MANAGER = "elasticjob.dev/operator"
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
"""The garbage collector's own finalizers: on an object whose dependents are to outlive it, and on one that
waits until they are gone."""
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
"""Labels of an ElasticJob: a LocalQueue of its namespace, and a WorkloadPriorityClass."""
_MOST_FINALIZERS, _LONGEST_FINALIZER = 8, 253
"""What is kept of others' finalizers: the API server bounds neither their number nor their length."""

MAX_BYTES = 2**60
"""The most that an agent takes for its memory: larger quantities count as this."""
_MEMORY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|k|M|G|T)?")

T = TypeVar("T", int, str)


@dataclass(frozen=True)
class JobDefaults:
    """Defaults for fields that a job leaves out. ``ttl_after_finished`` and ``active_deadline`` are seconds;
    None: the job is kept, there is no deadline. ``limits`` are fields of ``spec.failurePolicy``; one that the
    job has replaces the whole field here. ``memory_checkpoints`` is ``spec.memoryCheckpoints`` of jobs
    without it; None where it is not set. ``namespaces``: the defaults of one namespace, which come before
    those here."""

    ttl_after_finished: int | None = None
    active_deadline: int | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    memory_checkpoints: Mapping[str, Any] | None = None
    namespaces: Mapping[str, JobDefaults] = field(default_factory=dict)

    def of(self, namespace: str) -> JobDefaults:
        """What holds there."""
        own = self.namespaces.get(namespace)
        if own is None:
            return self
        ttl, deadline = own.ttl_after_finished, own.active_deadline
        return JobDefaults(
            self.ttl_after_finished if ttl is None else ttl,
            self.active_deadline if deadline is None else deadline,
            {**self.limits, **own.limits},
            self.memory_checkpoints if own.memory_checkpoints is None else own.memory_checkpoints,
        )


_NO_DEFAULTS = JobDefaults()


@dataclass(frozen=True)
class JobView:
    """One version of an ElasticJob: ``version`` is its resourceVersion. ``ours`` is False for one that
    another controller manages, ``deleting`` once it has a deletionTimestamp."""

    job: Job
    status: JobStatus
    version: int
    managed_here: bool
    deleting: bool


class MalformedJob(Exception):
    """The job is left alone. Mostly its status cannot be read: it was not written by an operator, or by a
    newer one.

    ``event`` is the reason of the Event that says so.
    """

    event = "StatusUnreadable"


class TooNewJob(MalformedJob):
    """Only a newer operator may act on the job."""

    event = "StatusTooNew"


class TemplateTooLargeJob(MalformedJob):
    """Its pod template is larger than what the operator keeps of a job."""

    event = "TemplateTooLarge"


def read_job(
    raw: Mapping[str, Any], known: JobView | None = None, defaults: JobDefaults = _NO_DEFAULTS
) -> JobView:
    """Read an ElasticJob; the spec of ``known`` is taken over when it is of the same generation.

    Raises MalformedJob.
    """
    meta = raw["metadata"]
    uid, generation = str(meta["uid"]), int(meta.get("generation", 0))
    spec = _mapping(raw.get("spec"))
    if known is not None and known.job.uid == uid and known.job.generation == generation:
        job = known.job
    else:
        namespace, name = str(meta["namespace"]), str(meta["name"])
        try:
            job = Job(namespace, name, uid, generation, read_spec(spec, defaults.of(namespace)))
        except TemplateTooLarge as error:
            raise TemplateTooLargeJob(
                f"{namespace}/{name}: {error}; the job is left alone. Put long scripts and lists into a "
                "ConfigMap or the image, delete the job, and apply it again"
            ) from error
    finalizers, queue = _finalizers(meta), _queue(meta)
    if (job.finalizers, job.queue) != (finalizers, queue):
        job = replace(job, finalizers=finalizers, queue=queue)
    try:
        status = status_json.parse(_mapping(raw.get("status")))
    except StatusTooNewError as error:
        raise TooNewJob(
            f"{job.namespace}/{job.name}: its status was written by a newer operator ({error}, and this one "
            f"reads {VERSION}); the job is left alone until a newer operator runs"
        ) from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedJob(
            f"{job.namespace}/{job.name}: the status cannot be read ({type(error).__name__}: {error}); "
            "restore it, or remove it to start over"
        ) from error
    return JobView(
        job=job,
        status=status,
        version=version_of(meta),
        managed_here=spec.get("managedBy", MANAGER) == MANAGER,
        deleting=bool(meta.get("deletionTimestamp")),
    )


def _finalizers(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that keep a job which is being deleted, but for the garbage collector's, which deletes its pods
    or takes them from it (``kubectl delete --cascade=orphan``): until then nothing is done to these."""
    found = tuple(map(str, meta.get("finalizers") or ())) if meta.get("deletionTimestamp") else ()
    if ORPHAN in found:
        return ()
    others = [one for one in found if one != FOREGROUND]
    kept = [one[:_LONGEST_FINALIZER] for one in others[:_MOST_FINALIZERS]]
    more = len(others) - len(kept)
    return (*kept, f"{more} more") if more else tuple(kept)


def _queue(meta: Mapping[str, Any]) -> QueueRequest | None:
    """What the labels ask for. A label of another form than the API server accepts is not there."""
    labels = _mapping(meta.get("labels"))
    name = str(labels.get(QUEUE_LABEL) or "")
    return QueueRequest(name, str(labels.get(PRIORITY_LABEL) or "")) if name else None


def read_spec(spec: Mapping[str, Any], defaults: JobDefaults = _NO_DEFAULTS) -> JobSpec:
    """Read ``spec``. Raises TemplateTooLarge."""
    policy = {**defaults.limits, **_mapping(spec.get("failurePolicy"))}
    deadline = _optional(spec, "activeDeadlineSeconds", 1)
    template = spec.get("template")
    own_pods = isinstance(template, dict)
    nproc = spec.get("nprocPerNode")
    ttl = _optional(spec, "ttlSecondsAfterFinished", 0)
    scaling = _mapping(spec.get("scaling"))
    asked = JobSpec(
        replicas=_number(spec, "replicas", 1, 1),
        min_replicas=_optional(spec, "minReplicas", 1),
        max_replicas=_optional(spec, "maxReplicas", 1),
        spares=_number(spec, "spares", 0, 0) if own_pods else 0,
        sizes=_sizes(scaling),
        nproc_per_node=str(nproc) if isinstance(nproc, (int, str)) and str(nproc) else None,
        template=PackedTemplate(template) if isinstance(template, dict) else None,
        handler_source=_word(spec.get("handlerSource"), HandlerSource) or JobSpec.handler_source,
        warm_workers=_warm_workers(spec.get("warmWorkers")),
        memory_checkpoints=_memory_checkpoints(spec.get("memoryCheckpoints", defaults.memory_checkpoints))
        if own_pods
        else None,
        limits=_limits(_mapping(spec.get("rendezvous")), _optional(policy, "hangTimeoutSeconds", 1)),
        application=_application(policy.get("application")),
        infrastructure=_limit(_mapping(policy.get("infrastructure"))),
        preemption=_limit(_mapping(policy.get("preemption"))),
        rules=_rules(policy.get("rules")),
        max_rounds_without_progress=_optional(policy, "maxRoundsWithoutProgress", 1),
        idle_deadline=_optional(policy, "idleDeadlineSeconds", 1),
        fencing_after=_fencing(_mapping(policy.get("fencing"))),
        fencing_needs_proof=_mapping(policy.get("fencing")).get("type") == FencingType.WAIT_FOR_PROOF,
        scale_up_delay=_number(scaling, "scaleUpDelaySeconds", JobSpec.scale_up_delay, 0),
        payback=_optional(scaling, "paybackSeconds", 1),
        extra_priority_class=str(scaling.get("extraPriorityClassName") or ""),
        drain_seconds=_number(spec, "drainSeconds", JobSpec.drain_seconds, 0),
        suspend=own_pods and spec.get("suspend") is True,
        active_deadline=defaults.active_deadline if deadline is None else deadline,
        ttl_after_finished=defaults.ttl_after_finished if ttl is None else ttl,
        clean_pod_policy=_word(spec.get("cleanPodPolicy"), CleanPodPolicy) or JobSpec.clean_pod_policy,
        network_policy=_word(spec.get("networkPolicy"), NetworkPolicy) or JobSpec.network_policy,
        gang_scheduling=_word(spec.get("gangScheduling") if own_pods else None, GangScheduling)
        or JobSpec.gang_scheduling,
    )
    return sized(asked)


def _sizes(scaling: Mapping[str, Any]) -> Sizes:
    listed = sorted(size for size in _entries(scaling.get("sizes"), int) if size > 0)
    return Sizes(tuple(listed), _number(scaling, "multipleOf", 1, 1))


def _warm_workers(fields: object) -> WarmWorkers | None:
    """An empty object switches them on. What is no module's name is left out: pods would refuse it."""
    if not isinstance(fields, dict):
        return None
    imports = _entries(fields.get("imports"), str)
    return WarmWorkers(
        enabled=fields.get("enabled") is not False,
        imports=tuple(name for name in imports if all(part.isidentifier() for part in name.split("."))),
    )


def _memory_checkpoints(value: object) -> MemoryCheckpoints | None:
    """0 bytes switch them off, where a default has switched them on."""
    fields = _mapping(value)
    most = memory_bytes(fields.get("perPod"))
    if not most:
        return None
    return MemoryCheckpoints(
        most,
        _number(fields, "copies", MemoryCheckpoints.copies, 0),
        _word(fields.get("spread"), CopySpread) or MemoryCheckpoints.spread,
    )


def memory_bytes(value: object) -> int | None:
    """What ``memoryCheckpoints.perPod`` comes to, in whole bytes; None if the schema would not have it."""
    if isinstance(value, bool) or _MEMORY.fullmatch(str(value)) is None:
        return None
    found = quantity.parse(value)
    return None if found is None else min(int(found), MAX_BYTES)


def _limits(rendezvous: Mapping[str, Any], hang_timeout: int | None) -> Limits:
    limits = Limits.read(lambda key, least, default: _number(rendezvous, key, default, least))
    return replace(limits, hang_timeout=hang_timeout or 0)


def _application(fields: object) -> Limit:
    """An empty object asks for no limit, an absent one for the default."""
    return _limit(fields) if isinstance(fields, dict) else JobSpec.application


def _limit(fields: Mapping[str, Any]) -> Limit:
    return Limit(
        max_restarts=_optional(fields, "maxRestarts", 0),
        window_seconds=_optional(fields, "windowSeconds", 1),
    )


def _fencing(fields: Mapping[str, Any]) -> int | None:
    after = fields.get("type") == FencingType.AFTER_SECONDS
    return _optional(fields, "afterSeconds", 1) if after else None


def _rules(value: object) -> tuple[Rule, ...]:
    """The rules that can be used, in order."""
    rules = (_rule(_mapping(fields)) for fields in (value if isinstance(value, list) else []))
    return tuple(rule for rule in rules if rule is not None)


def _rule(fields: Mapping[str, Any]) -> Rule | None:
    """A rule; None where its action is unknown (a newer schema's) or there is not exactly one criterion."""
    action = _word(fields.get("action"), RuleAction)
    codes = _entries(fields.get("onWorkerExitCodes"), int)
    reasons = _entries(fields.get("onPodReasons"), str)
    pattern = fields.get("onErrorPattern")
    pattern = pattern if isinstance(pattern, str) else ""
    if action is None or sum(map(bool, (codes, reasons, pattern))) != 1:
        return None
    return Rule(str(fields.get("name", "")), action, codes, reasons, pattern)


def _entries(value: object, kind: type[T]) -> tuple[T, ...]:
    entries = value if isinstance(value, list) else []
    return tuple(one for one in entries if isinstance(one, kind) and not isinstance(one, bool))


def _word(value: object, words: type[enum.Enum]) -> str | None:
    return value if isinstance(value, str) and value in {word.value for word in words} else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _optional(fields: Mapping[str, Any], key: str, minimum: int) -> int | None:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        return None
    return value


def _number(fields: Mapping[str, Any], key: str, default: int, minimum: int) -> int:
    value = _optional(fields, key, minimum)
    return default if value is None else value
