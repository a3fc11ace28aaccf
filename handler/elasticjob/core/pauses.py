"""How long to pause before something that has failed is tried again: the handler and the operator. Pure."""

from __future__ import annotations


def exponential(first: float, longest: float, failures: int) -> float:
    """Seconds to pause after failures in a row: ``first`` after one, twice as long after each further one."""
    return min(longest, first * 2.0 ** min(failures - 1, 16))
