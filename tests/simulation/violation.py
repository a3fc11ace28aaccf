"""That something does not hold which always must."""

from __future__ import annotations

from tests.simulation import traits


class Violation(AssertionError):
    """An invariant does not hold. ``rule`` is its number, such as I1, or Liveness."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


def violated(rule: str, text: str) -> None:
    """Raise Violation, where that rule is judged at all."""
    if traits.ON & traits.NEEDED_BY[rule]:
        raise Violation(rule, text)
