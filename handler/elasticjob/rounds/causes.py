"""Why rounds end. Of several causes the one with the smallest priority number explains the most."""

from __future__ import annotations

from elasticjob.contract.str_enum import StrEnum


class Cause(StrEnum):
    """A cause, with its priority: the smaller, the more it explains.

    Announced changes come first, then pods that were taken away with notice, lost pods and nodes, members
    that could not be reached, hangs and failures of workers, and the rest.
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
"""Causes that end a round before it is established, without regard to the members' states."""

ENDS_ALONE = ESTABLISHING | {Cause.HANG, Cause.WORKER_FAILED}
"""Causes that end a round of which no member is gone."""

CHARGED_ONCE = ESTABLISHING | {Cause.UNREACHABLE, Cause.MEMBER_LEFT}
"""A series of rounds that ended for these before they were established is charged once."""

CUT_OFF = frozenset({Cause.UNREACHABLE, Cause.LEADER_UNREACHABLE})
"""Causes of an established round that a broken path explains."""

PLANNED = frozenset({Cause.SCALED_UP, Cause.SCALED_DOWN})
"""Causes without a failure: the next round was possible before they ended this one."""


def better(cause: str, than: str) -> bool:
    """Whether this cause explains more than that one. An unknown one and "" explain least."""
    return _PRIORITY.get(cause, _LAST) < _PRIORITY.get(than, _LAST)
