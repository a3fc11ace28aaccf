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
    "ScaledDown": SCALING,
    "ScaledUp": SCALING,
    "PodDeleted": PREEMPTION,
    # A pod or node lost.
    "OutOfMemory": APPLICATION,
    "NodeLost": INFRASTRUCTURE,
    "PodLost": INFRASTRUCTURE,
    "PodRestarted": INFRASTRUCTURE,
    "PodFailed": APPLICATION,
    # Unreachable or silent members.
    "Unreachable": INFRASTRUCTURE,
    "LeaderUnreachable": INFRASTRUCTURE,
    "DidNotRejoin": INFRASTRUCTURE,
    "NotEstablished": INFRASTRUCTURE,
    # Worker errors, and what is left.
    "WorkerFailed": APPLICATION,
    "RecordAhead": INFRASTRUCTURE,
    "MemberLeft": INFRASTRUCTURE,
}
"""Cause to account, best evidence first (design, section 7)."""

_RANK = {cause: position for position, cause in enumerate(CAUSES)}

ESTABLISHING = frozenset({"NotEstablished", "LeaderUnreachable"})
"""Causes that end a round before it is established, whatever the members' states."""

CHARGED_ONCE = ESTABLISHING | {"Unreachable", "MemberLeft"}
"""Causes of which a series of rounds that were never established is charged once."""


@dataclass(frozen=True)
class Evidence:
    """One sign against the round. ``message`` is the sentence that people read."""

    cause: str
    message: str
    pod: str = ""
    rank: int | None = None
    exit_code: int | None = None

    @property
    def account(self) -> str:
        """The account that this cause is charged to."""
        return CAUSES[self.cause]


def better(cause: str, than: str) -> bool:
    """Whether this cause explains more than that one. Anything is better than none."""
    return _RANK.get(cause, len(_RANK)) < _RANK.get(than, len(_RANK))
