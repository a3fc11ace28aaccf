"""How long a participant waits for a round at most. Pure."""

from __future__ import annotations


class JoinTime:
    """``limit`` seconds from ``now`` on (monotonic). The time in which others train and this participant
    stands by does not count, as torch's c10d does not count it for a node of its redundancy list."""

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self._deadline = now + limit
        self._stands_by_since: float | None = None

    def is_over(self, now: float, stands_by: bool) -> bool:
        """Whether it has waited for too long; ``stands_by``: a round of others runs now."""
        if self._stands_by_since is not None:
            self._deadline += now - self._stands_by_since
        self._stands_by_since = now if stands_by else None
        return not stands_by and now > self._deadline
