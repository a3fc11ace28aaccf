"""The spec as the planner sees it where rounds may only have some sizes.

The planner wants one of these sizes. Replicas beyond it stand by, as spares do.
"""

from __future__ import annotations

from dataclasses import replace

from elasticjob_operator.plan.state.model import JobSpec


def sized(spec: JobSpec) -> JobSpec:
    """``replicas`` and ``min_replicas`` are sizes, and the replicas beyond are among the spares; the same
    number of pods is wanted. Where no size is small enough the sizes count as not set."""
    size = spec.sizes.floor(spec.replicas)
    if size == 0:
        return sized(replace(spec, sizes=JobSpec.sizes))
    beyond, least = spec.replicas - size, spec.min_replicas
    return replace(
        spec,
        replicas=size,
        min_replicas=None if least is None else min(spec.sizes.ceil(least), size),
        spares=spec.spares + beyond,
        beyond_size=spec.beyond_size + beyond,
    )
