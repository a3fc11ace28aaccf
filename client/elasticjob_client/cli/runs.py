"""Runs without an operator, read from their Leases: what ``status``, ``why`` and ``list`` show where there is
no ElasticJob of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob_client.cli.options import now
from elasticjob_client.errors import ClientError, Forbidden, NotFound, translated_errors

if TYPE_CHECKING:
    from lightkube.resources.coordination_v1 import Lease

    from elasticjob_client import Jobs
    from elasticjob_client.explain.runs import LeaseOf, Run


def run_of(jobs: Jobs, name: str, missing: ClientError) -> Run:
    """The run of this name. ``missing`` says that there is no such ElasticJob, or that it may not be read:
    raised if there is no such run either. Raises Forbidden if that can't be seen."""
    from elasticjob_client.explain import runs

    try:
        found = [run for run in _found(jobs, jobs.namespace, name) if run.name == name]
    except Forbidden as error:
        both = isinstance(missing, Forbidden)
        text = runs.hidden_too(str(missing), error.reason) if both else runs.hidden(name, error.reason)
        raise Forbidden(text, runs.RIGHT) from None
    except ClientError:
        raise missing from None
    if found:
        return found[0]
    if isinstance(missing, Forbidden):
        raise NotFound(runs.nothing_but(name, jobs.namespace, missing.reason)) from None
    raise missing


def all_runs(jobs: Jobs, all_namespaces: bool) -> list[Run]:
    """The runs of the namespace, or of all; none without an answer. Raises Forbidden if Leases may not be
    listed."""
    try:
        return _found(jobs, "*" if all_namespaces else jobs.namespace)
    except Forbidden as error:
        from elasticjob_client.explain import runs

        raise Forbidden(f"runs without an operator cannot be seen: {error.reason}", runs.RIGHT) from None
    except ClientError:
        return []


def _found(jobs: Jobs, namespace: str, name: str = "") -> list[Run]:
    """Raises ClientError."""
    from lightkube.core.client import LabelSelector
    from lightkube.operators import exists
    from lightkube.resources.coordination_v1 import Lease

    from elasticjob.peers.run import RUN_LABEL
    from elasticjob_client.explain import runs

    labels: LabelSelector = {RUN_LABEL: name or exists()}
    with translated_errors(f"list Leases of namespace {namespace}", jobs.server):
        leases = list(jobs.client.list(Lease, namespace=namespace, labels=labels))
    return runs.runs([_lease(one) for one in leases], now())


def _lease(found: Lease) -> LeaseOf:
    from elasticjob_client.explain.runs import LeaseOf

    metadata = found.metadata
    return LeaseOf(
        name=(metadata.name if metadata else None) or "",
        namespace=(metadata.namespace if metadata else None) or "",
        holder=(found.spec.holderIdentity if found.spec else None) or "",
        annotations=(metadata.annotations if metadata else None) or {},
        created=metadata.creationTimestamp if metadata else None,
        renewed=found.spec.renewTime if found.spec else None,
    )
