"""Early ends: rounds that end within a minute without progress slow down, and after ten in a row the run has
failed (I14)."""

from __future__ import annotations

from elasticjob.core.pauses import exponential

EARLY_SECONDS = 60.0
MOST_EARLY_ENDS = 10
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


def early_ends(before: int, planned: bool, age: float | None, step: int, best_step: int) -> int:
    """How many rounds in a row have ended early, with one that has just ended: after ``age`` seconds at
    ``step``, where no earlier round had come further than ``best_step``. A ``planned`` end is none, as is
    that of a round of which a pod was deleted or evicted, and of one whose age is not known; they end no
    series."""
    if step > best_step or (age is not None and age >= EARLY_SECONDS):
        return 0
    return before if planned or age is None else before + 1


def pause_seconds(early: int) -> float:
    """The pause before the next round: the first early end has none."""
    return exponential(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, early - 1) if early > 1 else 0.0
