"""Whether an agent has failed to write its Lease for so long that others have to know. Pure."""

from __future__ import annotations

CANNOT_WRITE_SECONDS = 3.0
"""How long writes must have failed: shorter trouble ends by itself."""


class WriteTrouble:
    """Times are the caller's monotonic seconds. ``reported``: others are to know."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.reported = False

    def failed(self, began: float, now: float) -> bool:
        """A write that began at ``began`` has failed; returns ``reported``."""
        self._since = began if self._since is None else self._since
        self.reported = self.reported or now - self._since >= CANNOT_WRITE_SECONDS
        return self.reported

    def over(self) -> bool:
        """A write has succeeded; returns what ``reported`` was."""
        reported, self._since, self.reported = self.reported, None, False
        return reported
