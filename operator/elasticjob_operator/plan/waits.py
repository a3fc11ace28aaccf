"""What an ElasticJob waits for beside its rounds."""

from __future__ import annotations

import enum


class JobWait(enum.Enum):
    """Kinds of waits. The value is the reason in words. Those that nothing declares with a limit are what a
    pass remembers for the next."""

    END_EXPLAINED = "for the reason why a pod ended with exit code 0 before it joined"
    EXIT_EXPLAINED = "for the reason why the container of a member ended with exit code 0"
    SILENCE = "for a sign of life from a member without a Lease on a node that is not ready"
    NODE_GONE = "for a deleted Node object to come back"
    FORCED_DELETION = "to delete a pod on a dead node again, with grace period 0"
    EXCLUSION_LIFTED = "for pods to be scheduled before another exclusion is lifted"
    NODE_READY = "for the node of a pod that has not joined to become ready"
    RENEWAL_CHANGE = "for the next write of the round Lease, which carries the new renewal interval"
    SCHEDULING = "for the scheduler to decide on a new pod"
    SCALE_UP = "for more new pods to join (scaleUpDelaySeconds)"
    ROUND_BACKOFF = "for the back-off after rounds that ended without progress"
    SLOT_BACKOFF = "for the back-off of a slot whose pods ended early"
    SLOT_PROBATION = "for a pod to stay, because earlier pods of its slot ended soon after they joined"
    SCALING_BACKOFF = "for spec.replicas to stop changing"
    GROWTH_BACKOFF = "for the next attempt to grow"
    UNJOINED = "for a running pod to join"
    IDLE = "for a round while pods are scheduled (idleDeadlineSeconds)"
    PODS_END = "for pods to end by themselves"
    SIDECAR = "for the other containers of a pod to end"
    ORPHAN = "for the pod of a Lease to appear"
    IGNORED_REFRESH = "to update the reasons why pods are ignored"
    STATUS_THROTTLE = "to write joins and messages to the status"
    PROGRESS_THROTTLE = "to write progress to the status"
    SURPLUS = "for a surplus pod to end"
    LABELS_TOLD = "to repeat that labels of a pod were changed"
    NO_ERROR_TEXT_TOLD = "to repeat that a failure has no error text"
    OPEN_FILES_TOLD = "to repeat that too few files may be opened"
