"""How fast pods are created: at a rate that the API server, the scheduler and the kubelets can handle.

Each pod costs the control plane about a dozen writes until it has joined. If a thousand jobs are applied at
once and all their pods are created at once, none of them is ready for minutes. So pods are created at a fixed
rate, one job after the other: the first jobs train while the last ones have no pods yet. A pass does not wait
for its turn: the job gets another pass when the turn has come.

The namespaces that have pods to create share the rate. The few pods that a running job lacks are created at
once, without a reservation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PODS_PER_SECOND = 50.0
PODS_PER_TURN = 64
"""Pods of one job in a row; then it is another's turn."""
UNTHROTTLED_PODS = 8
"""How many pods a job that has trained gets at once."""
_BEHIND_SECONDS = 1.0


@dataclass(frozen=True)
class Reservation:
    """``pods`` may be created from ``at`` on (monotonic)."""

    pods: int
    at: float


class PodCreationLimiter:
    """Reservations, of all jobs. ``behind`` says whether what was made before is not even seen yet."""

    def __init__(self, clock: Callable[[], float], behind: Callable[[], bool]) -> None:
        self._clock = clock
        self._behind = behind
        self._free_at: dict[str, float] = {}
        """When the pods that a namespace has reserved will have been made, by namespace."""

    def turn(
        self, namespace: str, wanted: int, trained: bool, reserved: Reservation | None
    ) -> tuple[Reservation | None, float | None]:
        """What is reserved for a job that wants pods, and seconds until its turn; None: it may make them now.
        ``trained``: it has had a round, and has other pods."""
        if not wanted or (trained and wanted <= UNTHROTTLED_PODS):
            return None, None
        now = self._clock()
        reserved = reserved or self._reserve(namespace, wanted, now)
        if reserved.at <= now and self._behind():
            # At the end of the queue: a thousand jobs that ask again every second would not help.
            reserved = self._reserve(namespace, wanted, now + _BEHIND_SECONDS)
        return reserved, reserved.at - now if reserved.at > now else None

    def due(
        self, namespace: str, wanted: int, trained: bool, reserved: Reservation | None
    ) -> tuple[int, Reservation | None, float | None]:
        """How many of the pods that a job wants may be made now, what is reserved for it from now on, and
        after how many seconds to ask again."""
        reserved, delay = self.turn(namespace, wanted, trained, reserved)
        if reserved is None or delay is not None:
            return 0 if reserved else wanted, reserved, delay
        made = min(wanted, reserved.pods)
        if made == wanted:
            return made, None, None
        now = self._clock()
        following = self._reserve(namespace, wanted - made, now)
        return made, following, max(0.0, following.at - now)

    def _reserve(self, namespace: str, wanted: int, now: float) -> Reservation:
        self._free_at = {name: at for name, at in self._free_at.items() if at > now}
        at = self._free_at.get(namespace, now)
        pods = min(wanted, PODS_PER_TURN)
        sharing = len(self._free_at.keys() | {namespace})
        self._free_at[namespace] = at + pods * sharing / PODS_PER_SECOND
        return Reservation(pods, at)
