"""Why rounds end: every cause, its account, and which evidence is better than which."""

from __future__ import annotations

from dataclasses import dataclass

APPLICATION = "application"
INFRASTRUCTURE = "infrastructure"
PREEMPTION = "preemption"
SCALING = "scaling"

ACCOUNTS = (APPLICATION, INFRASTRUCTURE, PREEMPTION, SCALING)

CAUSES: dict[str, str] = {
    # A change announced before.
    "Suspended": SCALING,
    "Resumed": SCALING,
    "ScaledDown": SCALING,
    "ScaledUp": SCALING,
    # A pod taken away with notice: by the scheduler or a node's shutdown, by the eviction API, by hand.
    "Preempted": PREEMPTION,
    "Evicted": PREEMPTION,
    "PodDeleted": PREEMPTION,
    # A pod or node lost.
    "OutOfMemory": APPLICATION,
    "NodeLost": INFRASTRUCTURE,
    "NodePressure": INFRASTRUCTURE,
    "PodLost": INFRASTRUCTURE,
    "PodRestarted": INFRASTRUCTURE,
    "PodFailed": APPLICATION,
    # Unreachable or silent members.
    "Unreachable": INFRASTRUCTURE,
    "LeaderUnreachable": INFRASTRUCTURE,
    "DidNotRejoin": INFRASTRUCTURE,
    "NotEstablished": INFRASTRUCTURE,
    # Hangs, worker errors, and what is left. A worker error that a rule matches comes before a hang.
    "Hang": APPLICATION,
    "WorkerFailed": APPLICATION,
    "RecordAhead": INFRASTRUCTURE,
    "MemberLeft": INFRASTRUCTURE,
    # No loss at all: the round has succeeded, and the members' commands go on with another torchrun.
    "StartedAgain": SCALING,
}
"""Cause to account, best evidence first (design, section 7)."""

WORKER_FAILED = "WorkerFailed"
HANG = "Hang"

_RANK = {cause: position for position, cause in enumerate(CAUSES)}

ESTABLISHING = frozenset({"NotEstablished", "LeaderUnreachable"})
"""Causes that end a round before it is established, whatever the members' states."""

CHARGED_ONCE = ESTABLISHING | {"Unreachable", "MemberLeft"}
"""Causes of which a series of rounds that were never established is charged once."""

CUT_OFF = frozenset({"Unreachable", "LeaderUnreachable"})
"""Causes that a broken path has, as long as the round was established."""

SCALED_UP = "ScaledUp"

PLANNED = frozenset({SCALED_UP, "ScaledDown"})
"""Causes that have nothing to do with a failure: the next round was possible before they ended this one."""

STARTED_AGAIN = "StartedAgain"

NEVER_CHARGED = frozenset({"Suspended", "Resumed", STARTED_AGAIN})
"""Causes that have an account like any other, and are not charged to it: nothing was restarted."""


@dataclass(frozen=True)
class Evidence:
    """One sign against the round. ``message`` is the sentence that people read.

    ``reasons`` are the words by which the API knows the end of the pod (OOMKilled, Evicted, NodeLost ...),
    and ``error`` is the worker's own message: what failure rules look at. ``milliseconds`` is how long after
    the round's barrier it happened, where that is known: of several worker failures the first is the root.
    ``detect_milliseconds`` is how long it took until it was noticed, where the witness knows that.
    """

    cause: str
    message: str
    pod: str = ""
    rank: int | None = None
    exit_code: int | None = None
    uid: str = ""
    node: str = ""
    reasons: tuple[str, ...] = ()
    error: str = ""
    milliseconds: int | None = None
    detect_milliseconds: int | None = None

    @property
    def account(self) -> str:
        """The account that this cause is charged to."""
        return CAUSES[self.cause]


def better(cause: str, than: str) -> bool:
    """Whether this cause explains more than that one. Anything is better than none."""
    return _RANK.get(cause, len(_RANK)) < _RANK.get(than, len(_RANK))


def explains_more(
    cause: str, matched: bool, milliseconds: int | None, than: str, than_matched: bool, than_ms: int | None
) -> bool:
    """Whether one root failure is to be preferred to another.

    ``matched`` says that a rule has something to say on it, which puts a worker error before a hang. Of
    two worker errors the earlier one is the root, and the other its echo; unknown is latest.
    """
    if cause == than == WORKER_FAILED:
        return milliseconds is not None and (than_ms is None or milliseconds < than_ms)
    if matched and (cause, than) == (WORKER_FAILED, HANG):
        return True
    if than_matched and (cause, than) == (HANG, WORKER_FAILED):
        return False
    return better(cause, than)
