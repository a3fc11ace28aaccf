"""How long to pause before a request that has failed is made again."""

from __future__ import annotations

import random

from elasticjob.core.pauses import exponential


def pause(first: float, longest: float, failures: int, retry_after: float = 0.0) -> float:
    """Seconds after failures in a row: as ``exponential``, but at least as long as the server has asked for,
    and up to a fifth more or less, because many participants may have failed at the same moment."""
    return max(exponential(first, longest, failures), retry_after) * random.uniform(0.8, 1.2)
