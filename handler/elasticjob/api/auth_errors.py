"""How long the API server has refused this identity. An agent waits for that to pass, but not for ever."""

from __future__ import annotations

import time
from dataclasses import dataclass

from elasticjob.api.errors import ApiError, Forbidden, Unauthorized


@dataclass(frozen=True)
class _Refusal:
    kind: type[ApiError]
    since: float
    last: float
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
        now = time.monotonic()
        since = before.since if before is not None and before.kind is kind else now
        lasting = isinstance(error, Unauthorized) and error.lasting
        self._refusals[what] = _Refusal(kind, since, now, lasting)

    def forget(self, what: str | None = None) -> None:
        """Count from the next outcome on, of requests of this name or of all."""
        for name in list(self._refusals) if what is None else [what]:
            self._refusals.pop(name, None)

    @property
    def lasting(self) -> bool:
        """Whether a latest refusal was that of a token that the kubelet will not replace soon."""
        return any(refusal.lasting for refusal in list(self._refusals.values()))

    def refused(self, kind: type[ApiError], what: str | None = None) -> bool:
        """Whether the latest answer to requests of this name, or of one of them, was of this kind."""
        return bool(self._of(kind, what))

    def seconds(self, kind: type[ApiError], what: str | None = None) -> float:
        """For how many seconds every answer to requests of this name, or of one of them, has been of this
        kind: from the first to the last, so that one that is never repeated counts 0."""
        return max((r.last - r.since for r in self._of(kind, what)), default=0.0)

    def _of(self, kind: type[ApiError], what: str | None) -> list[_Refusal]:
        return [r for name, r in list(self._refusals.items()) if r.kind is kind and what in (None, name)]
