"""Which operator leads, as its Lease says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.options import name_of
from elasticjob_client.errors import translated_errors

if TYPE_CHECKING:
    from lightkube.core.client import LabelSelector

    from elasticjob_client import Jobs
    from elasticjob_client.explain.checks import Lead

LABELS: LabelSelector = {"app.kubernetes.io/name": "elasticjob"}
"""The labels of all that the chart creates."""

operator_namespace = click.option(
    "--operator-namespace",
    default="elasticjob-system",
    show_default=True,
    callback=name_of("a namespace"),
    help="Where the operator runs.",
)


def leads(jobs: Jobs, namespace: str) -> list[Lead]:
    """The operators' Leases. Raises Forbidden if the user may not see that namespace."""
    from lightkube.resources.coordination_v1 import Lease

    from elasticjob_client.explain.checks import Lead

    with translated_errors(f"list Leases of namespace {namespace}", jobs.server):
        return [
            Lead(
                name=(lease.metadata.name if lease.metadata else None) or "",
                holder=(lease.spec.holderIdentity if lease.spec else None) or "",
                renewed=lease.spec.renewTime if lease.spec else None,
            )
            for lease in jobs.client.list(Lease, namespace=namespace, labels=LABELS)
        ]
