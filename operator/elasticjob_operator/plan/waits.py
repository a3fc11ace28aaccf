"""What an ElasticJob waits for beside its rounds."""

from __future__ import annotations

import enum


class JobWait(enum.Enum):
    """Kinds of waits. The value is the reason in words. Those that nothing declares with a limit are what a
    pass remembers for the next."""

    END_EXPLAINED = "for somebody to say who has ended a pod that ended with 0 before it joined"
    EXIT_EXPLAINED = "for somebody to say who has ended a member whose container ended with 0"
    SILENCE = "for a member without a Lease, on a node that is not ready, to be heard of"
    NODE_GONE = "for a Node object that was deleted to come back"
    FORCED_DELETION = "to delete a pod on a dead node again, with grace period 0"
    EXCLUSION_LIFTED = "for pods to find a node before another exclusion is lifted"
    NODE_READY = "for the node of a pod that has not joined to become ready"
    RENEWAL_CHANGE = "for another write of the round Lease to carry the interval of renewals"
    SCHEDULING = "for the scheduler to decide on a new pod"
    SCALE_UP = "for more new pods to join (scaleUpDelaySeconds)"
    ROUND_BACKOFF = "for the back-off of rounds that end without progress"
    SLOT_BACKOFF = "for the back-off of a slot whose pods end early"
    SLOT_PROBATION = "for a pod to stay, since earlier pods of its slot ended soon after they had joined"
    SCALING_BACKOFF = "for the number of wanted members to stop changing"
    GROWTH_BACKOFF = "for the next try to grow"
    UNJOINED = "for a running pod to join"
    IDLE = "for a round, while pods hold nodes (idleDeadlineSeconds)"
    PODS_END = "for pods to end by themselves"
    SIDECAR = "for the other containers of a pod to end"
    ORPHAN = "for the pod of a Lease to be seen"
    IGNORED_REFRESH = "to say anew why pods are ignored"
    STATUS_THROTTLE = "to write joins and sentences to the status"
    PROGRESS_THROTTLE = "to write progress to the status"
    SURPLUS = "for a surplus pod to end"
    LABELS_TOLD = "to say again that labels of a pod were changed"
    OPEN_FILES_TOLD = "to say again that too few files may be opened"
