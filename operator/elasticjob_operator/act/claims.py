"""Reads the ResourceClaimTemplates of a job's template, for the number of workers in its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob.contract.devices import Requests
from elasticjob_operator.act.job_state import PodState
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Forbidden, NotFound
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.template.accelerators import claim_templates

_VERSIONS = ("v1", "v1beta1")
"""Versions of resource.k8s.io, since Kubernetes 1.34 and 1.32."""


def unread(job: Job, pods: PodState) -> list[str]:
    """Those that have to be read before pods are made."""
    return sorted(claim_templates(job) - pods.claims.keys())


async def read(api: Api, job: Job, pods: PodState) -> None:
    """Read what is unread. Raises ApiError for one that is not there, or if the API server does not answer:
    pods that were made now would have another number of workers than those made later."""
    for name in unread(job, pods):
        pods.claims = {**pods.claims, name: await _read(api, job.namespace, name)}


async def _read(api: Api, namespace: str, name: str) -> Requests | None:
    for version in _VERSIONS:
        try:
            raw = await api.get(
                f"/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaimtemplates/{name}"
            )
        except Forbidden:
            return None
        except NotFound as error:
            if name in error.message:
                raise
        else:
            return dict(_requests(raw))
    return None  # a cluster without such claims


def _requests(raw: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Each request by name, with its device classes; None for one that only looks on (adminAccess)."""
    spec = (raw.get("spec") or {}).get("spec") or {}
    for request in (spec.get("devices") or {}).get("requests") or ():
        one = request.get("exactly") or request
        classes = [str(kind.get("deviceClassName") or "") for kind in request.get("firstAvailable") or [one]]
        yield str(request.get("name", "")), None if one.get("adminAccess") is True else tuple(classes)
