"""What ``elasticjob doctor`` concludes from what it could look at: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from elasticjob_client.explain.status import UNSEEN_SECONDS
from elasticjob_client.explain.times import age
from elasticjob_client.resource import ElasticJob

LEASE_SECONDS = 60
"""An operator that leads renews its Lease more often than this."""
NEEDED = {
    "see jobs": [("get", "elasticjobs"), ("list", "elasticjobs"), ("watch", "elasticjobs")],
    "create, change and delete jobs": [
        ("create", "elasticjobs"),
        ("patch", "elasticjobs"),
        ("delete", "elasticjobs"),
    ],
    "see pods and Events": [("list", "pods"), ("list", "events")],
    "read logs": [("get", "pods/log")],
    "run scripts (`elasticjob run`)": [
        ("create", "configmaps"),
        ("get", "configmaps"),
        ("update", "configmaps"),
        ("patch", "configmaps"),
        ("delete", "configmaps"),
    ],
    "enter pods (`elasticjob exec`, `elasticjob stacks`)": [("get", "pods"), ("create", "pods/exec")],
    "kill pods (`elasticjob drill`)": [("delete", "pods")],
}
"""What a user needs which rights for."""


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One check. ``advice``: what to do; if it is not ok, there is one unless ``found`` says it."""

    result: Literal["ok", "failed", "unknown"]
    subject: str
    found: str
    advice: str = ""


def rights(allowed: Mapping[tuple[str, str], bool], namespace: str) -> list[Check]:
    """The check of the user's rights, from the answers to "may I"."""
    found = []
    for what, needed in NEEDED.items():
        missing = [
            f"{verb} {resource}" for verb, resource in needed if not allowed.get((verb, resource), False)
        ]
        if missing:
            advice = "ask for Kubernetes' role edit in the namespace: docs/operate/permissions.md"
            text = f"no right in namespace {namespace} to {', '.join(missing)}"
            found.append(Check(result="failed", subject=what, found=text, advice=advice))
        else:
            found.append(Check(result="ok", subject=what, found=f"allowed in namespace {namespace}"))
    return found


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease of leader election."""

    name: str
    holder: str = ""
    renewed: datetime | None = None


def leading(leases: Sequence[Lead], now: datetime) -> list[Lead]:
    """Those that are held by an operator that leads."""
    return [
        one
        for one in leases
        if one.holder and one.renewed and (now - one.renewed).total_seconds() < LEASE_SECONDS
    ]


def leading_operator(leases: Sequence[Lead], namespace: str, now: datetime) -> Check:
    """Whether an operator leads."""
    subject = "operator"
    fresh = leading(leases, now)
    if fresh:
        return Check(
            result="ok",
            subject=subject,
            found=f"{fresh[0].holder} leads, renewed {age(fresh[0].renewed, now)} ago",
        )
    if leases:
        last = max(leases, key=lambda one: one.renewed.timestamp() if one.renewed else 0.0)
        text = (
            f"no operator leads: the Lease {namespace}/{last.name} was renewed {age(last.renewed, now)} ago"
        )
        return Check(
            result="failed",
            subject=subject,
            found=text,
            advice=f"see `kubectl -n {namespace} get pods` and their logs",
        )
    return Check(
        result="failed",
        subject=subject,
        found=f"no Lease of an operator in namespace {namespace}",
        advice="install it (docs/operate/install.md), or name its namespace with --operator-namespace",
    )


def unseen(jobs: Sequence[ElasticJob], now: datetime) -> Check:
    """Whether jobs wait for an operator that does not come."""
    waiting = [
        job.name
        for job in jobs
        if (job.status is None or not job.status.conditions)
        and job.spec.managed_by in (None, "elasticjob.dev/operator")
        and job.metadata.creation_timestamp
        and (now - job.metadata.creation_timestamp).total_seconds() > UNSEEN_SECONDS
    ]
    if waiting:
        return Check(
            result="failed",
            subject="jobs",
            found=f"no operator has looked at {', '.join(waiting[:5])}",
            advice="see whether the operator serves this namespace (watchNamespaces of the chart) and leads",
        )
    return Check(result="ok", subject="jobs", found=f"{len(jobs)} in this namespace, each with a status")


def version(image: str, client: str) -> Check:
    """Whether the operator is of the client's version."""
    tag = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] and "@" not in image else ""
    if not tag:
        return Check(
            result="unknown",
            subject="versions",
            found=f"the operator's image {image} has no tag",
            advice=f"see whether the chart's version is the client's, {client}: `helm list -A`",
        )
    if tag == client:
        return Check(result="ok", subject="versions", found=f"operator and client are {client}")
    return Check(
        result="unknown",
        subject="versions",
        found=f"the operator is {tag}, the client {client}",
        advice="fields that only one of them knows are not shown: docs/reference/compatibility.md",
    )
