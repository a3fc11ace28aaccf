"""Kinds of waits of an ElasticJob, apart from those of its rounds, and all of its waits in words."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping

from elasticjob.contract.text import listed
from elasticjob.rounds.waits import Wait


class JobWait(enum.Enum):
    """Kinds of waits. The value is the reason in words. Those that nothing declares with a limit are what a
    pass remembers for the next."""

    END_EXPLAINED = "for the reason why a pod ended with exit code 0 before it joined"
    EXIT_EXPLAINED = "for the reason why the container of a member ended with exit code 0"
    OLD_TOKENS = "for pods from before their service account to write"
    SILENCE = "for a sign of life from a member without a Lease on a node that is not ready"
    FENCING = "for a sign of life from the members of the previous round (failurePolicy.fencing)"
    NODE_GONE = "for a deleted Node object to come back"
    FORCED_DELETION = "to delete a pod on a dead node again, with grace period 0"
    EXCLUSION_LIFTED = "for pods to be scheduled before another exclusion is lifted"
    NODE_READY = "for the node of a pod that has not joined to become ready"
    RENEWAL_CHANGE = "for the next write of the round Lease, which carries the new renewal interval"
    SCHEDULING = "for the scheduler to decide on a new pod"
    UNSCHEDULED = "for a sign that a scheduler knows a pod"
    SCALE_UP = "for more new pods to join (scaleUpDelaySeconds)"
    ROUND_BACKOFF = "for the back-off after rounds that ended without progress"
    SLOT_BACKOFF = "for the back-off of a slot whose pods ended early"
    SLOT_PROBATION = "for a pod to stay, because earlier pods of its slot ended soon after they joined"
    DRAIN = "for the workers of a round that drains to stop (drainSeconds)"
    UNSAVED = (
        "for storage to have the steps that only memory holds, before pods are taken away (drainSeconds)"
    )
    NODE_NOTICE = "for a pod to join that replaces a member whose node is about to go"
    REPLACEMENT = "for a pod to join that replaces a member whose pod is being deleted"
    WARM_WORKERS = "for the members to be able to start their workers warm"
    SCALING_BACKOFF = "for spec.replicas to stop changing"
    GROWTH_BACKOFF = "for the next attempt to grow"
    UNJOINED = "for a running pod to join"
    ACTIVE_DEADLINE = "for the job to end before it fails (activeDeadlineSeconds)"
    IDLE = "for a round while pods hold nodes (idleDeadlineSeconds)"
    TIME_TO_LIVE = "to delete the job (ttlSecondsAfterFinished)"
    PODS_END = "for pods to end by themselves"
    SIDECAR = "for the other containers of a pod to end"
    ORPHAN = "for the pod of a Lease to appear"
    LEFT_BEHIND = "for Kubernetes to delete a pod of an earlier job of this name"
    IGNORED_REFRESH = "to update the reasons why pods are ignored"
    STATUS_THROTTLE = "to write joins and messages to the status"
    PROGRESS_THROTTLE = "to write progress to the status"
    SURPLUS = "for a surplus pod to end"
    LABELS_REPORTED = "to repeat that labels of a pod were changed"
    NO_ERROR_TEXT_REPORTED = "to repeat that a failure has no error text"
    EARLY_END_TOLD = "to repeat that a pod ended before it joined"
    OPEN_FILES_REPORTED = "to repeat that too few files may be opened"


THROTTLES = frozenset(
    {
        JobWait.RENEWAL_CHANGE,
        JobWait.IGNORED_REFRESH,
        JobWait.STATUS_THROTTLE,
        JobWait.PROGRESS_THROTTLE,
        JobWait.SURPLUS,
        JobWait.LABELS_REPORTED,
        JobWait.NO_ERROR_TEXT_REPORTED,
        JobWait.EARLY_END_TOLD,
        JobWait.OPEN_FILES_REPORTED,
    }
)
"""Kinds that decide nothing about the job, only how often something is written or said."""


def sentences(waits: Iterable[Wait], names: Mapping[str, str]) -> list[str]:
    """What a job waits for, a line for each reason, in the order of ``waits``. ``names``: its pods by UID."""
    about: dict[tuple[str, str], list[str]] = {}
    for wait in waits:
        if wait.key.kind not in THROTTLES:
            # The next pass is due when nothing is left: it may take a moment.
            left = f"{math.ceil(round(max(0.0, wait.left), 3))} of {wait.limit:.0f} s left"
            about.setdefault((wait.reason, left), []).append(_subject(wait.key.about, names))
    return [
        f"waits {reason}: {f'{listed(subjects)}, ' if any(subjects) else ''}{left}"
        for (reason, left), subjects in about.items()
    ]


def _subject(about: str | int, names: Mapping[str, str]) -> str:
    return f"round {about}" if isinstance(about, int) else names.get(about, about)
