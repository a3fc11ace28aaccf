"""An ElasticJob as JSON, read into the planner's words.

The API server has applied the schema's defaults and checked types; reading stays tolerant all the same
(an older schema, a field that this version does not know): a value that can't be used counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob_operator.observe.objects import version_of
from elasticjob_operator.plan.model import Job, JobSpec, Limit, Rendezvous
from elasticjob_operator.plan.status import JobStatus

MANAGER = "elasticjob.dev/operator"


@dataclass(frozen=True)
class JobView:
    """One version of an ElasticJob: ``version`` is its resourceVersion. ``ours`` is False for one that
    another controller manages, ``deleting`` once it has a deletionTimestamp."""

    job: Job
    status: JobStatus
    version: int
    ours: bool
    deleting: bool


class MalformedJob(Exception):
    """The status of a job can't be read: somebody other than an operator has written it."""


def read_job(raw: Mapping[str, Any], known: JobView | None = None) -> JobView:
    """Read an ElasticJob; the spec of ``known`` is taken over when it is of the same generation.

    Raises MalformedJob.
    """
    meta = raw["metadata"]
    uid, generation = str(meta["uid"]), int(meta.get("generation", 0))
    spec = _mapping(raw.get("spec"))
    if known is not None and known.job.uid == uid and known.job.generation == generation:
        job = known.job
    else:
        job = Job(
            namespace=str(meta["namespace"]),
            name=str(meta["name"]),
            uid=uid,
            generation=generation,
            spec=read_spec(spec),
        )
    try:
        status = JobStatus.parse(_mapping(raw.get("status")))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedJob(
            f"{job.namespace}/{job.name}: status can't be read ({type(error).__name__}: {error}); "
            "expected what an operator has written; remove or restore it"
        ) from error
    return JobView(
        job=job,
        status=status,
        version=version_of(meta),
        ours=spec.get("managedBy", MANAGER) == MANAGER,
        deleting=bool(meta.get("deletionTimestamp")),
    )


def read_spec(spec: Mapping[str, Any]) -> JobSpec:
    """Read ``spec``. Never raises."""
    policy = _mapping(spec.get("failurePolicy"))
    template = spec.get("template")
    nproc = spec.get("nprocPerNode")
    return JobSpec(
        replicas=_number(spec, "replicas", 1, 1),
        min_replicas=_optional(spec, "minReplicas", 1),
        max_replicas=_optional(spec, "maxReplicas", 1),
        nproc_per_node=str(nproc) if isinstance(nproc, (int, str)) and str(nproc) else None,
        template=template if isinstance(template, dict) else None,
        rendezvous=_rendezvous(_mapping(spec.get("rendezvous"))),
        application=_limit(_mapping(policy.get("application"))),
        infrastructure=_limit(_mapping(policy.get("infrastructure"))),
    )


def _rendezvous(fields: Mapping[str, Any]) -> Rendezvous:
    default = Rendezvous()
    return Rendezvous(
        start_timeout=_number(fields, "startTimeoutSeconds", default.start_timeout, 0),
        last_call=_number(fields, "lastCallSeconds", default.last_call, 0),
        rejoin=_number(fields, "rejoinSeconds", default.rejoin, 0),
        establish_timeout=_number(fields, "establishTimeoutSeconds", default.establish_timeout, 1),
        heartbeat_timeout=_number(fields, "heartbeatTimeoutSeconds", default.heartbeat_timeout, 1),
        join_timeout=_optional(fields, "joinTimeoutSeconds", 0),
    )


def _limit(fields: Mapping[str, Any]) -> Limit:
    return Limit(
        max_restarts=_optional(fields, "maxRestarts", 0),
        window_seconds=_optional(fields, "windowSeconds", 1),
    )


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
