"""Paths of the API that several writers need."""

from __future__ import annotations

from elasticjob.contract.names import GROUP, PLURAL, VERSION


def job_path(namespace: str, name: str) -> str:
    """The ElasticJob's own path."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"
