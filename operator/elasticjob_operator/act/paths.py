"""Paths of the API that several writers need."""

from __future__ import annotations

from elasticjob.contract.names import GROUP, PLURAL, VERSION


def jobs_path(namespace: str) -> str:
    """The ElasticJobs of a namespace, or of all ("")."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{scope}/{PLURAL}"


def job_path(namespace: str, name: str) -> str:
    """The ElasticJob's own path."""
    return f"{jobs_path(namespace)}/{name}"
