"""The spec of a job as its user wrote it, in tests that change what the planner sees."""

from __future__ import annotations

from dataclasses import replace

from elasticjob_operator.plan.state.model import JobSpec


def asked(spec: JobSpec) -> JobSpec:
    """What ``sized`` has made this of."""
    replicas, spares = spec.replicas + spec.beyond_size, spec.spares - spec.beyond_size
    return replace(spec, replicas=replicas, spares=spares, beyond_size=0)
