"""Names that operator and handler agree on: labels, annotations, environment, objects.

One writer for every object (docs/internals/writes.md):

====================  ==============  ======================================================
object                writer          annotation
====================  ==============  ======================================================
Lease ``<job>-round``  operator        :data:`ROUND_ANNOTATION`, a ``RoundRecord``
Lease                 operator        :data:`MEMBERS_ANNOTATION`, a ``MemberList``
``<job>.members-round``
Lease ``<pod name>``   that pod        :data:`PARTICIPANT_ANNOTATION`, a ``ParticipantRecord``;
                                      :data:`FAILURE_ANNOTATION`, a ``FailureReport``;
                                      :data:`REPORT_ANNOTATION`, a ``RoundReport``;
                                      :data:`PROGRESS_ANNOTATION`, a ``ProgressReport``;
                                      :data:`DRAIN_ANNOTATION`, a ``DrainReport``;
                                      :data:`STARTS_ANNOTATION`, a ``StartsReport``;
                                      :data:`RESUMED_ANNOTATION`, a ``ResumedReport``;
                                      :data:`FINISHED_ANNOTATION`, a round's nonce;
                                      :data:`FENCED_ANNOTATION`, a round's nonce;
                                      :data:`RELAY_ANNOTATION`, a ``RelayReport``
====================  ==============  ======================================================
"""

from __future__ import annotations

import re

GROUP = "elasticjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticJob"
PLURAL = "elasticjobs"

BACKEND = "k8s"
"""What the user gives to ``--rdzv-backend``."""

JOB_LABEL = f"{GROUP}/job-name"
SLOT_LABEL = f"{GROUP}/slot"
ATTEMPT_LABEL = f"{GROUP}/attempt"
STANDBY_LABEL = f"{GROUP}/standby"
"""Pods that stand by have it: an autoscaler's metrics leave them out."""
KEPT_LABELS = (STANDBY_LABEL,)
"""Labels of pods that the operator keeps up to date while they run."""
COMPLETION_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"

ROUND_ANNOTATION = f"{GROUP}/round"
MEMBERS_ANNOTATION = f"{GROUP}/members"
PARTICIPANT_ANNOTATION = f"{GROUP}/participant"
FAILURE_ANNOTATION = f"{GROUP}/failure"
REPORT_ANNOTATION = f"{GROUP}/report"
PROGRESS_ANNOTATION = f"{GROUP}/progress"
DRAIN_ANNOTATION = f"{GROUP}/drain"
STARTS_ANNOTATION = f"{GROUP}/starts"
RESUMED_ANNOTATION = f"{GROUP}/resumed"
FINISHED_ANNOTATION = f"{GROUP}/finished"
"""The nonce of the last round that the participant has finished well. It stays when another torchrun runs in
the same container."""
FENCED_ANNOTATION = f"{GROUP}/fenced"
"""The nonce of the round whose leader this is, once all its workers have opened ``elasticjob.checkpoint``,
which refuses what they save after a later round has begun."""
RELAY_ANNOTATION = f"{GROUP}/relay"
"""What members that cannot write have reported to this one, which can."""
AVOID_NODES_ANNOTATION = f"{GROUP}/avoid-nodes"
"""The nodes that the pod's affinity excludes by the operator's choice, separated by commas."""
DRAIN_HOOK_ANNOTATION = f"{GROUP}/drain-hook"
"""``true`` if the pod's training container has a preStop hook that waits while the round drains."""
REPLACE_SECONDS_ANNOTATION = f"{GROUP}/replace-seconds"
"""How many seconds that hook waits while the next pod starts, before the round drains."""

MEMBER_CONDITION = f"{GROUP}/member"
"""Whether a pod whose template has a readiness gate of this name is a member of an established round."""

HOOK_FOLDERS = ("/dev/shm", "/tmp")
"""The folders in which a pod's preStop hook looks for what the handler says, the file
``elasticjob-hook-<UID>.<word>``. The first can be written even if a container's root is read-only."""
HOOK_PREFIX = "elasticjob-hook-"
HOOK_READY = "ready"
HOOK_REPLACING = "replacing"
HOOK_DRAINING = "draining"
HOOK_WORDS = (HOOK_READY, HOOK_REPLACING, HOOK_DRAINING)

UNTRACKED: dict[str, list[dict[str, str]]] = {"managedFields": [{}]}
"""Part of a Lease's metadata in a merge patch: from then on the API server does not track which client set a
field. Tracking is a third of what a write costs it, and 40 % of the object."""

POD_NAME_ENV = "ELASTICJOB_POD_NAME"
POD_UID_ENV = "ELASTICJOB_POD_UID"
JOB_UID_ENV = "ELASTICJOB_JOB_UID"
"""Which job the pod was created for; records of another job of the same name are ignored."""
ROUND_ENV = "ELASTICJOB_ROUND"
"""Set in the workers' environment: the round's number, a fencing token for checkpoints."""
PROGRESS_DIR_ENV = "ELASTICJOB_PROGRESS_DIR"
"""Set in the workers' environment: the folder in which each process that reports has a file with its step;
new for each round."""
WARM_ENV = "ELASTICJOB_WARM_WORKERS"
"""``on`` or ``off``: whether the agent makes warm interpreters. ``--rdzv-conf=warm=...`` wins."""
WARM_IMPORTS_ENV = "ELASTICJOB_WARM_IMPORTS"
"""The modules that they import beside torch, separated by ``:``. ``--rdzv-conf=warm_imports=...`` wins."""
MEMORY_ENV = "ELASTICJOB_MEMORY"
"""How many bytes of checkpoints the agent may hold in memory, its own and those of other pods. Without it
there is no memory tier."""
COPIES_ENV = "ELASTICJOB_COPIES"
"""How many other pods have a copy of what a pod saves to memory: 0 or 1."""
NODE_ENV = "ELASTICJOB_NODE"
"""The pod's node: copies go to pods on another one, where there is one."""
ZONE_ENV = "ELASTICJOB_ZONE"
"""The zone of the pod's node: of the pods on other nodes, copies go to one in another zone, where there is
one."""
MEMORY_AGENT_ENV = "ELASTICJOB_MEMORY_AGENT"
"""Set in the workers' environment: where they reach their agent's memory, and by which key in this round."""
SERVICE_ACCOUNT_DIR_ENV = "ELASTICJOB_SERVICE_ACCOUNT_DIR"
"""The folder with token, ca.crt and namespace, if it is not the usual one."""

MAX_JOB_NAME_LENGTH = 45
"""``<job>-<slot>-<attempt>`` is a DNS label then (63 characters)."""
MAX_DIGITS = 8
"""Digits of a slot, and of an attempt, in a pod's name."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def is_job_name(name: str) -> bool:
    """Whether an ElasticJob may have this name, by the rule of the resource's schema."""
    return len(name) <= MAX_JOB_NAME_LENGTH and _LABEL.fullmatch(name) is not None


def is_namespace(name: str) -> bool:
    """Whether a namespace may have this name: it is a DNS label."""
    return len(name) <= 63 and _LABEL.fullmatch(name) is not None


def round_lease(job: str) -> str:
    """The name of the Lease that carries the job's round record."""
    return f"{job}-round"


def members_lease(job: str) -> str:
    """The name of the Lease that carries the members' ids of a large round. No job's name has a dot, and no
    pod may write a Lease with this ending."""
    return round_lease(f"{job}.members")


def round_object(job: str) -> str:
    """The Lease that carries the job's round record, in a sentence."""
    return f"Lease {round_lease(job)}"


def members_object(job: str) -> str:
    """The Lease that carries the members' ids of a large round, in a sentence."""
    return f"Lease {members_lease(job)}"


def pod_name(job: str, slot: int, attempt: int) -> str:
    """The name of a pod that the operator creates, and of that pod's Lease."""
    return f"{job}-{slot}-{attempt}"


def slot_and_attempt(job: str, pod: str) -> tuple[int, int] | None:
    """Slot and attempt of a pod with this name; None if it is no name by ``pod_name``."""
    head, _, attempt = pod.rpartition("-")
    head, _, slot = head.rpartition("-")
    if head != job or not (slot.isascii() and slot.isdigit() and attempt.isascii() and attempt.isdigit()):
        return None
    numbers = int(slot[:MAX_DIGITS]), int(attempt[:MAX_DIGITS])
    return numbers if pod_name(job, *numbers) == pod else None
