"""What ``elasticjob status`` says: who trains, rounds with their causes and costs, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from elasticjob.contract.launch_command import KEPT_APART_LISTED
from elasticjob.contract.text import in_a_row
from elasticjob_client.explain import unscheduled
from elasticjob_client.explain.lease_progress import age_seconds
from elasticjob_client.explain.steps import with_steps
from elasticjob_client.explain.times import duration
from elasticjob_client.pods import Pod
from elasticjob_client.resource import Account, CurrentRound, ElasticJob, Progress, Round

NO_STATUS = "NoStatus"
"""The state of a job that no operator has looked at."""


class PodRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A pod of the job. ``role``: Member, Standby, Joining and so on, or the pod's own state."""

    pod: str
    rank: int | None = None
    slot: int | None = None
    node: str = ""
    role: str = ""
    processes: int | None = None
    message: str = ""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """All that the command shows; ``-o json`` prints it."""

    name: str
    namespace: str
    state: str
    message: str
    replicas: int | None = None
    minimum: int | None = None
    restarts: int = 0
    age_seconds: int | None = None
    active_seconds: int | None = None
    current_round: CurrentRound | None = None
    progress: Progress | None = None
    progress_age_seconds: int | None = None
    pods: list[PodRow] = []
    rounds: list[Round] = []
    accounts: list[Account] = []
    next: list[str] = []


def status(job: ElasticJob, pods: Sequence[Pod], now: datetime) -> JobStatus:
    """Put it together. ``pods``: all of the job's."""
    seen = job.status
    training = job.condition("Training")
    state, message = (training.reason, training.message) if training else (NO_STATUS, "")
    if failed := job.condition("Failed"):
        message = f"{failed.reason}: {failed.message}" if failed.status == "True" else message
    created = job.metadata.creation_timestamp
    return JobStatus(
        name=job.name,
        namespace=job.namespace,
        state=state,
        message=message,
        replicas=job.spec.replicas,
        minimum=seen.min_replicas if seen else None,
        restarts=seen.restarts if seen else 0,
        age_seconds=int((now - created).total_seconds()) if created else None,
        active_seconds=active_seconds(job, now),
        current_round=seen.current_round if seen and seen.current_round.number else None,
        progress=seen.progress if seen else None,
        progress_age_seconds=age_seconds(job, now),
        pods=_pods(job, pods),
        rounds=with_steps(seen.round_history) if seen else [],
        accounts=list(seen.accounts) if seen else [],
        next=next_steps(job, pods, now),
    )


def active_seconds(job: ElasticJob, now: datetime) -> int | None:
    """How long the job has been active: until now, or until its end. None before it was started."""
    seen = job.status
    if not seen:
        return None
    if seen.active_seconds is not None and (seen.terminal_state or not seen.start_time):
        return seen.active_seconds
    if not seen.start_time:
        return None
    return (seen.active_seconds or 0) + max(0, int((now - seen.start_time).total_seconds()))


def _pods(job: ElasticJob, pods: Sequence[Pod]) -> list[PodRow]:
    """Participants as the status has them, then the pods that have not joined and have not ended."""
    participants = job.status.participants if job.status else []
    by_name = {pod.name: pod for pod in pods}
    rows = [
        PodRow(
            pod=p.pod_name,
            rank=p.group_rank,
            slot=p.slot,
            node=p.node_name,
            role=p.state,
            processes=p.local_world_size,
            message=p.message or (by_name[p.pod_name].waiting if p.pod_name in by_name else ""),
        )
        for p in participants
    ]
    known = {row.pod for row in rows}
    for pod in pods:
        if pod.name in known or pod.phase in ("Succeeded", "Failed"):
            continue
        rows.append(PodRow(pod=pod.name, slot=pod.slot, node=pod.node, role=pod.state, message=pod.waiting))
    return rows


PLAIN_TORCHRUN = f"the command must be `torchrun train.py`, without {KEPT_APART_LISTED}"
_AFTER_FAILURE = {
    "NeverJoined": PLAIN_TORCHRUN,
    "NoProgress": "save checkpoints more often, or find out why each round fails",
    "MembersDisagree": "run the same torchruns in all pods; one for some pods only needs --standalone",
    "IdleDeadlineExceeded": "see which pods were missing, and why they did not start",
    "FailureRule": "a rule of spec.failurePolicy.rules has ended the job; change it if it should not have",
}
_STAYS_ENDED = (
    "a job that has ended stays ended: delete it and create it again; the script resumes from its checkpoint"
)
UNSEEN_SECONDS = 15
"""After which a job without a status needs an explanation."""


def next_steps(job: ElasticJob, pods: Sequence[Pod], now: datetime) -> list[str]:
    """What its user can do next, the most useful first. Empty if all is well."""
    name = job.name
    if job.status is None or not job.status.conditions:
        return _unseen(job, now)
    if job.status.terminal_state == "Failed":
        failed = job.condition("Failed")
        reason = failed.reason if failed else ""
        steps = [f"`elasticjob why {name}` tells the last failure, with the end of its log"]
        if account := _exhausted(reason):
            steps.append(f"when that is mended, or to allow more: spec.failurePolicy.{account}.maxRestarts")
        elif reason in _AFTER_FAILURE:
            steps.append(_AFTER_FAILURE[reason])
        return [
            *steps,
            _STAYS_ENDED,
        ]
    if job.status.terminal_state:
        return []
    return [*_by_state(job, pods), *_warnings(job)]


def _unseen(job: ElasticJob, now: datetime) -> list[str]:
    if job.spec.managed_by and job.spec.managed_by != "elasticjob.dev/operator":
        return [f"spec.managedBy leaves this job to {job.spec.managed_by}"]
    created = job.metadata.creation_timestamp
    if created and (now - created).total_seconds() < UNSEEN_SECONDS:
        return []
    return ["no operator has looked at this job: `elasticjob doctor` says whether one runs and leads"]


def _exhausted(reason: str) -> str:
    """The account whose limit ended the job, "" if none did."""
    account = reason.removesuffix("RestartsExhausted").lower()
    return account if reason.endswith("RestartsExhausted") else ""


def _by_state(job: ElasticJob, pods: Sequence[Pod]) -> list[str]:
    name, state = job.name, job.state
    if state == "Suspended":
        return [f"`elasticjob resume {name}` trains again, from the script's last checkpoint"]
    if state == "WaitingForFencing":
        return [
            "if one of the nodes that the message names is certainly off: give it the taint "
            "node.kubernetes.io/out-of-service, or delete its Node object; do not delete pods with "
            "--force on a node that may still run. A script that saves with elasticjob.checkpoint need not "
            "wait for this"
        ]
    if state in ("WaitingForPods", "FormingRound"):
        stuck = [pod for pod in pods if pod.waiting]
        found = [unscheduled.advice(job, pod.waiting) for pod in stuck if unscheduled.REASON in pod.waiting]
        if other := [one.text for one in found if not one.room]:
            return other[:1]
        if found:
            return [
                "no node has room for all pods: wait, ask for less in the template, or continue with fewer: "
                f"`elasticjob scale {name} N`, or spec.minReplicas"
            ]
        if any("Image" in pod.waiting for pod in stuck):
            return ["an image cannot be pulled: check its name, and the pull secrets in the template"]
        if any(pod.phase == "Running" for pod in pods):
            return [f"`elasticjob logs {name} --all` shows what the pods that run are doing"]
        return [f"`elasticjob events {name}` shows what keeps pods from starting"]
    return []


def _warnings(job: ElasticJob) -> list[str]:
    assert job.status
    found = []
    for account in job.status.accounts:
        if account.max_restarts is not None and account.used >= account.max_restarts:
            within = f" within {duration(account.window_seconds)}" if account.window_seconds else ""
            used = f"{account.used} of {account.max_restarts} restarts"
            found.append(
                f"{used} of the account {account.name} are used{within}: "
                f"the next failure of this kind ends the job (`elasticjob why {job.name}`)"
            )
    failure = job.status.last_failure
    if not found and failure and job.status.progress and job.status.progress.rounds_without_progress:
        count = job.status.progress.rounds_without_progress
        found.append(
            f"{in_a_row(count, 'round')} made no progress: `elasticjob why {job.name}` tells the last failure"
        )
    return found
