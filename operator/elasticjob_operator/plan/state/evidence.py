"""Evidence against a round, the account of each cause, and which evidence explains more."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.rounds.causes import Cause, better

APPLICATION = "application"
INFRASTRUCTURE = "infrastructure"
PREEMPTION = "preemption"
SCALING = "scaling"

ACCOUNTS = (APPLICATION, INFRASTRUCTURE, PREEMPTION, SCALING)

CAUSES_OF: dict[str, tuple[Cause, ...]] = {
    APPLICATION: (Cause.OUT_OF_MEMORY, Cause.POD_FAILED, Cause.HANG, Cause.WORKER_FAILED),
    INFRASTRUCTURE: (
        *(Cause.NODE_LOST, Cause.NODE_PRESSURE, Cause.POD_LOST, Cause.POD_RESTARTED),
        *(Cause.UNREACHABLE, Cause.LEADER_UNREACHABLE, Cause.DID_NOT_REJOIN, Cause.NOT_ESTABLISHED),
        *(Cause.RECORD_AHEAD, Cause.MEMBER_LEFT),
    ),
    PREEMPTION: (Cause.PREEMPTED, Cause.EVICTED, Cause.POD_DELETED),
    SCALING: (Cause.SUSPENDED, Cause.RESUMED, Cause.SCALED_DOWN, Cause.SCALED_UP, Cause.STARTED_AGAIN),
}

CAUSES: dict[str, str] = {cause.value: account for account, causes in CAUSES_OF.items() for cause in causes}
"""Cause to account."""

NEVER_CHARGED = frozenset({Cause.SUSPENDED, Cause.RESUMED, Cause.STARTED_AGAIN})
"""Causes that have an account like any other, and are not charged to it: nothing was restarted."""


@dataclass(frozen=True)
class Evidence:
    """One observation that speaks against the round. ``message`` is the sentence that people read.

    ``reasons`` are the words by which the API knows the end of the pod (OOMKilled, Evicted, NodeLost ...),
    and ``error_text`` is the worker's own message: what failure rules look at. ``milliseconds`` is how long
    after the round's barrier it happened, where that is known: of several worker failures the first is the
    root. ``detect_milliseconds`` is how long it took until it was noticed, where the witness knows that.
    """

    cause: str
    message: str
    pod_name: str = ""
    group_rank: int | None = None
    exit_code: int | None = None
    pod_uid: str = ""
    node_name: str = ""
    reasons: tuple[str, ...] = ()
    error_text: str = ""
    milliseconds: int | None = None
    detect_milliseconds: int | None = None

    @property
    def account(self) -> str:
        """The account that this cause is charged to."""
        return CAUSES[self.cause]


def explains_more(
    cause: str, matched: bool, milliseconds: int | None, than: str, than_matched: bool, than_ms: int | None
) -> bool:
    """Whether one root failure is to be preferred to another.

    ``matched`` says that a rule has something to say on it, which puts a worker error before a hang. Of
    two worker errors the earlier one is the root, and the other its echo; unknown is latest.
    """
    if cause == than == Cause.WORKER_FAILED:
        return milliseconds is not None and (than_ms is None or milliseconds < than_ms)
    if matched and (cause, than) == (Cause.WORKER_FAILED, Cause.HANG):
        return True
    if than_matched and (cause, than) == (Cause.HANG, Cause.WORKER_FAILED):
        return False
    return better(cause, than)
