"""What faults led to, on real nodes beside the stand-in: the table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elasticjob_operator.plan.state.evidence import NEVER_CHARGED

REAL = "real"
STAND_IN = "stand-in"


@dataclass(frozen=True)
class Recovery:
    """What a fault led to; the times are seconds since it was struck."""

    fault: str
    nodes: str
    """Real, or the stand-in."""
    cause: str
    account: str
    message: str
    detected_milliseconds: int | None
    """As the status has it; None if it does not."""
    next_round: float
    next_step: float
    resumed_from: int
    """The last step before the first one that was made afterwards."""
    round: int
    """The one that trained then."""


def table_of(recoveries: Iterable[Recovery]) -> Iterator[str]:
    """As Markdown, in seconds: a line per fault, in the order of the alphabet."""
    found: dict[str, dict[str, Recovery]] = {}
    for one in recoveries:
        found.setdefault(one.fault, {})[one.nodes] = one
    yield "Seconds: until the loss was known, until the next round, until its first step."
    yield ""
    yield f"| fault | cause, account | {REAL} | {STAND_IN} |"
    yield "|---|---|---|---|"
    for fault, rows in sorted(found.items()):
        charges = dict.fromkeys(_charge(one) for _, one in sorted(rows.items()))
        times = (_times(rows[nodes]) if nodes in rows else "-" for nodes in (REAL, STAND_IN))
        yield f"| {fault} | {'; '.join(charges)} | {' | '.join(times)} |"


def _charge(one: Recovery) -> str:
    never = ", not charged" if one.cause in NEVER_CHARGED else ""
    return f"{one.cause}, {one.account}{never}"


def _times(one: Recovery) -> str:
    detected = "-" if one.detected_milliseconds is None else f"{one.detected_milliseconds / 1000:.1f}"
    return f"{detected} / {one.next_round:.1f} / {one.next_step:.1f}"
