"""How long the API server has refused this identity. An agent waits for that to pass, but not for ever."""

from __future__ import annotations

import time

from elasticjob.api.errors import ApiError, Forbidden, Unauthorized


class AuthErrors:
    """Fed with the outcome of every request of one thread, and read by others."""

    def __init__(self) -> None:
        self._latest: tuple[type[ApiError], float] | None = None
        self.granted = False
        """Whether a request has ever been accepted."""
        self.lasting = False
        """Whether the latest refusal was that of a token that the kubelet will not replace soon."""

    def record(self, error: ApiError | None) -> None:
        """The latest outcome; None is a success."""
        before = self._latest
        kind = type(error)
        self.granted = self.granted or error is None
        self.lasting = isinstance(error, Unauthorized) and error.lasting
        if not issubclass(kind, (Forbidden, Unauthorized)):
            self._latest = None
        elif before is None or before[0] is not kind:
            self._latest = kind, time.monotonic()

    def forget(self) -> None:
        """Count from the next outcome on."""
        self._latest = None

    def seconds(self, kind: type[ApiError]) -> float:
        """For how many seconds every answer has been of this kind; 0 if the latest was not."""
        latest = self._latest
        return time.monotonic() - latest[1] if latest is not None and latest[0] is kind else 0.0
