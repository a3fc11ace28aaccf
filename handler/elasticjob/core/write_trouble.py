"""Whether an agent cannot write its Lease, for so long that others have to know. Pure."""

from __future__ import annotations

CANNOT_WRITE_SECONDS = 3.0
"""How long writes must have failed: shorter trouble passes by itself."""


class WriteTrouble:
    """All times are the caller's monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.told = False

    def failed(self, began: float, now: float) -> bool:
        """A write that began then has failed; returns whether it is to be told."""
        self._since = began if self._since is None else self._since
        self.told = self.told or now - self._since >= CANNOT_WRITE_SECONDS
        return self.told

    def over(self) -> bool:
        """A write has succeeded; returns whether the trouble had been told."""
        told, self._since, self.told = self.told, None, False
        return told
