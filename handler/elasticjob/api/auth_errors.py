"""How long the API server has refused this identity. An agent waits for that to pass, but not for ever."""

from __future__ import annotations

import time
from dataclasses import dataclass

from elasticjob.api.errors import ApiError, Forbidden, Unauthorized


@dataclass(frozen=True)
class _Refusal:
    kind: type[ApiError]
    since: float
    lasting: bool


class AuthErrors:
    """Fed with the outcome of every request of one thread, and read by others. Requests for which different
    rights are needed have different names: reads that are allowed say nothing of writes that are not."""

    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}
        self.granted = False
        """Whether a request has ever been accepted."""

    def record(self, error: ApiError | None, what: str = "") -> None:
        """The latest outcome of requests of this name; None is a success."""
        before, kind = self._refusals.get(what), type(error)
        self.granted = self.granted or error is None
        if error is None or not issubclass(kind, (Forbidden, Unauthorized)):
            self._refusals.pop(what, None)
            return
        since = before.since if before is not None and before.kind is kind else time.monotonic()
        lasting = isinstance(error, Unauthorized) and error.lasting
        self._refusals[what] = _Refusal(kind, since, lasting)

    def forget(self) -> None:
        """Count from the next outcome on."""
        self._refusals = {}

    @property
    def lasting(self) -> bool:
        """Whether a latest refusal was that of a token that the kubelet will not replace soon."""
        return any(refusal.lasting for refusal in list(self._refusals.values()))

    def seconds(self, kind: type[ApiError], what: str | None = None) -> float:
        """For how many seconds every answer to requests of this name, or of one of them, has been of this
        kind; 0 if no latest one was."""
        since = [
            r.since for name, r in list(self._refusals.items()) if r.kind is kind and what in (None, name)
        ]
        return time.monotonic() - min(since) if since else 0.0
