"""Why rounds end. Of several causes the one with the smallest priority number explains the most."""

from __future__ import annotations

from elasticjob.contract.enums import StrEnum


class Cause(StrEnum):
    """A cause, with its priority: the smaller, the more it explains.

    A change that was announced comes first, then a pod that was taken away with notice, a pod or a node that
    was lost, members that could not be reached, hangs and failures of workers, and what is left.
    """

    priority: int

    def __new__(cls, value: str, priority: int) -> Cause:
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.priority = priority
        return cause

    SUSPENDED = "Suspended", 10
    RESUMED = "Resumed", 11
    SCALED_DOWN = "ScaledDown", 12
    SCALED_UP = "ScaledUp", 13

    PREEMPTED = "Preempted", 20
    EVICTED = "Evicted", 21
    POD_DELETED = "PodDeleted", 22

    OUT_OF_MEMORY = "OutOfMemory", 30
    NODE_LOST = "NodeLost", 31
    NODE_PRESSURE = "NodePressure", 32
    POD_LOST = "PodLost", 33
    POD_RESTARTED = "PodRestarted", 34
    POD_FAILED = "PodFailed", 35

    UNREACHABLE = "Unreachable", 40
    LEADER_UNREACHABLE = "LeaderUnreachable", 41
    DID_NOT_REJOIN = "DidNotRejoin", 42
    NOT_ESTABLISHED = "NotEstablished", 43

    HANG = "Hang", 50
    WORKER_FAILED = "WorkerFailed", 51
    RECORD_AHEAD = "RecordAhead", 52
    MEMBER_LEFT = "MemberLeft", 53
    STARTED_AGAIN = "StartedAgain", 54


_PRIORITY = {cause.value: cause.priority for cause in Cause}
_LAST = max(_PRIORITY.values()) + 1

ESTABLISHING = frozenset({Cause.NOT_ESTABLISHED, Cause.LEADER_UNREACHABLE})
"""Causes that end a round before it is established, whatever the members' states."""

CHARGED_ONCE = ESTABLISHING | {Cause.UNREACHABLE, Cause.MEMBER_LEFT}
"""Causes of which a series of rounds that were never established is charged once."""

CUT_OFF = frozenset({Cause.UNREACHABLE, Cause.LEADER_UNREACHABLE})
"""Causes that a broken path has, as long as the round was established."""

PLANNED = frozenset({Cause.SCALED_UP, Cause.SCALED_DOWN})
"""Causes that have nothing to do with a failure: the next round was possible before they ended this one."""


def better(cause: str, than: str) -> bool:
    """Whether this cause explains more than that one. Any explains more than none, or than an unknown one."""
    return _PRIORITY.get(cause, _LAST) < _PRIORITY.get(than, _LAST)
