"""A run: what its participants have in common, which objects it has, and which ids and sizes it can't
have."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.contract import names
from elasticjob.contract.fields import MAX_ID
from elasticjob.contract.text import is_token

MAX_PEERS = 128
"""The most members of a run: each of its writes is sent to all, with all members in it."""

RUN_LABEL = f"{names.GROUP}/run-name"
"""On the Leases of a run, and on its pods if their ends are to be watched. Not the label of an operator's
job: an operator deletes a round Lease of another job's UID."""
STATE_ANNOTATION = f"{names.GROUP}/run-state"
"""On the round Lease, beside the record: what the next coordinator needs, a ``RunState``."""
PEER_ANNOTATION = f"{names.GROUP}/peer"
"""On each participant's Lease: a ``PeerRecord``."""

UID_OF_THE_JOB = (
    "--rdzv-id=$(RUN) with env: [{name: RUN, valueFrom: {fieldRef: {fieldPath: "
    "\"metadata.labels['batch.kubernetes.io/controller-uid']\"}}}]"
)
"""The lines of a manifest that take the UID of the pods' Job for the run's id."""


class RunError(ValueError):
    """Such a run can't be. The text names what was found, what was expected and what to do."""


@dataclass(frozen=True)
class Run:
    """``name`` is that of ``--rdzv-endpoint``, ``id`` the value of ``--rdzv-id``: another one for each run of
    that name. ``1 <= minimum <= maximum <= MAX_PEERS`` members, from ``--nnodes``."""

    name: str
    id: str
    minimum: int
    maximum: int


def round_lease(name: str) -> str:
    """The name of the run's round Lease. No ElasticJob's name has a dot, so that no operator's Lease has this
    name; and a policy that lets pods write only their own Leases excepts the ending ``-round``."""
    return f"{name}.peers-round"


def check_run(name: str, run_id: str, minimum: int, maximum: int) -> Run:
    """The run with this id. Raises RunError."""
    if run_id in ("", "none"):
        raise RunError(
            f"--rdzv-id is {run_id or 'empty'}, but with rounds=peers each run needs an id of its own: a "
            "later run with "
            "the same id would be taken for this one, which is over. In a Job, take its UID: "
            f"{UID_OF_THE_JOB}"
        )
    if "$(" in run_id or "${" in run_id:
        raise RunError(
            f"--rdzv-id is {run_id[:80]!r}, in which a variable was not replaced, but with rounds=peers each "
            "run needs an id of its own. Kubernetes replaces $(RUN) in command and args if the container "
            f"has the variable RUN, and never ${{RUN}}. In a Job, take its UID: {UID_OF_THE_JOB}"
        )
    if not is_token(run_id, MAX_ID):
        raise RunError(
            f"--rdzv-id is {run_id[:80]!r}, but with rounds=peers it must be at most {MAX_ID} printable "
            "ASCII characters "
            f"without spaces. In a Job, take its UID: {UID_OF_THE_JOB}"
        )
    if not 1 <= minimum <= maximum:
        raise RunError(f"--nnodes is {minimum}:{maximum}, expected MIN:MAX with 1 <= MIN <= MAX")
    if maximum > MAX_PEERS:
        raise RunError(
            f"--nnodes is {minimum}:{maximum}, but rounds=peers takes at most {MAX_PEERS} pods, because "
            "each of its "
            "writes goes to all of them. A larger job needs the operator: create an ElasticJob"
        )
    return Run(name, run_id, minimum, maximum)


def check_pod(pod: str) -> None:
    """Raise RunError if the Lease of this pod could be a round Lease."""
    if pod.endswith("-round"):
        raise RunError(
            f"this pod is named {pod}, but no pod's name may end in -round: its Lease could be that of a "
            "run's rounds. "
            "Give what creates it another name"
        )
