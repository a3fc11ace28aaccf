"""The first row of ``elasticjob doctor JOB``: whether the job is, or comes, where it should be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from elasticjob_client.explain.checks import Check, unseen
from elasticjob_client.explain.status import next_steps
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob

_STAYS = ("cannot be created: ", "and has not joined")
"""The operator's words for pods that will not train unless something is changed."""


def state(job: ElasticJob, pods: Sequence[Pod], now: datetime) -> Check:
    """Failed if the job has failed, or will not start by itself."""
    if not served(job):
        return _unserved(job, now)
    failed, training = job.condition("Failed"), job.condition("Training")
    steps = next_steps(job, pods, now)
    advice = steps[0] if steps else f"`elasticjob events {job.name} --pods` tells more"
    if failed and failed.status == "True":
        return _check("failed", f"Failed: {failed.reason}: {failed.message}", advice)
    if training is None:
        return _check("unknown", "its status does not say whether it trains", advice)
    text = f"{training.reason}: {training.message}"
    if job.ended or training.status == "True" or training.reason in ("Suspended", "Queued"):
        return _check("ok", text, "")
    return _check("failed" if _stays(job, training.message) else "unknown", text, advice)


def served(job: ElasticJob) -> bool:
    """Whether an operator has looked at it."""
    return job.status is not None and bool(job.status.conditions)


def _unserved(job: ElasticJob, now: datetime) -> Check:
    found = unseen([job], now)
    if found.result == "failed":
        return _check("failed", found.found, found.advice)
    if job.spec.managed_by not in (None, "elasticjob.dev/operator"):
        text = f"spec.managedBy leaves this job to {job.spec.managed_by}, which has given it no status"
        return _check("unknown", text, "ask its administrators")
    return _check("unknown", f"no operator has looked at {job.name} yet", "try again in a few seconds")


def _stays(job: ElasticJob, message: str) -> bool:
    failure = job.status.last_failure if job.status else None
    early = failure is not None and failure.round is None and bool(failure.message)
    return any(text in message for text in _STAYS) or (
        early and failure is not None and failure.message in message
    )


def _check(result: Literal["ok", "failed", "unknown"], found: str, advice: str) -> Check:
    return Check(result=result, subject="state", found=found, advice=advice)
