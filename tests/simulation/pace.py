"""What may not happen too often, or take too long, while nothing is broken that would explain it.

I10: a planned change breaks a round only if the next one can be published at once, and none once a member
has succeeded. I14: rounds that get nowhere are paced.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticjob.rounds.causes import Cause
from tests.simulation.violation import violated

WINDOW_SECONDS = 600.0
PACED = 20
"""The pauses 1, 2, 4 ... 60 s let fifteen rounds begin within ten minutes, and more where one lives."""
PER_FAULT = 2
NEW_SECONDS = 10.0
"""A round that ended for a worker's failure, or because a container was restarted in place, has got somewhere
if it did so many seconds of new steps, and the job reports steps: no pause follows it, which would cost more
training than the failure did. (Kubelets pause before they restart a container again.)"""
GOT_SOMEWHERE = (Cause.WORKER_FAILED, Cause.POD_RESTARTED)
PLANNED_SECONDS = 30.0
"""How long a planned change may stop training: agents stop their workers within ten seconds."""
AFTERMATH_SECONDS = 180.0
"""How long after a fault something may still be wrong for it."""
STOP_SECONDS = 10.0
"""How long agents may take to stop their workers. In a few seconds of training that is a large part."""
TRAINED = 0.5
"""The part of the time that is trained while nothing but the size changes."""


class Pace:
    """Hears what is done to the world, and how rounds begin and end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._faults: list[float] = []
        self._changes: list[float] = []
        self._raised_at = float("-inf")
        self._published: list[float] = []
        self.come: Callable[[], float] = lambda: 0.0
        """How many seconds of reported steps the job has done, all rounds together; the world sets it."""
        self._came = 0.0
        self._further: list[float] = []
        """When a round came a little further than all before: the pauses begin anew."""
        self._planned: tuple[float, str] | None = None
        """When a planned change broke the round that has no successor yet, and which."""
        self._established_at: float | None = None
        self._began: float | None = None
        self._trained = 0.0
        self._completed_at: float | None = None

    def fault(self) -> None:
        """Something has been broken."""
        self._faults.append(self._now())

    def last_fault(self) -> float:
        """When something was last broken or changed."""
        return max((*self._faults[-1:], *self._changes[-1:]), default=float("-inf"))

    def changed(self, minimum_raised: bool = False) -> None:
        """Somebody wants another size."""
        self._changes.append(self._now())
        if minimum_raised:
            self._raised_at = self._now()

    def published(self, cause: str) -> None:
        """Another round, for this cause: are there too many for what has happened, but for those that follow
        one which got somewhere?"""
        self.judge()
        self._stopped()  # one that is begun with the write that ends the one before
        self._planned = None
        came, self._came = self._came, self.come()
        if cause in GOT_SOMEWHERE and self._came - came >= NEW_SECONDS:
            return
        if self._came > came:
            self._further.append(self._now())
        since = self._now() - WINDOW_SECONDS
        self._published = [at for at in self._published if at > since] + [self._now()]
        happened = sum(at > since - WINDOW_SECONDS for at in (*self._faults, *self._changes))
        series = 1 + sum(at > since for at in self._further)
        if len(self._published) > PACED * series + PER_FAULT * happened:
            text = f"{len(self._published)} rounds within {WINDOW_SECONDS:.0f} s, and {happened} events"
            violated("I14", text)

    def established(self) -> None:
        """The round trains."""
        self._established_at = self._now()
        if self._began is None:
            self._began = self._now()

    def broken(self, cause: str, planned: bool, succeeded: bool) -> None:
        """A round has ended."""
        self._stopped()
        if planned:
            self._planned = (self._now(), cause)
            if succeeded:
                violated("I10", f"{cause} broke a round of which a member had succeeded")

    def completed(self) -> None:
        """The job is over: all of its members, or some in pods that nobody replaces, finished as the change
        of size ended their round."""
        self._planned = None
        self._stopped()
        self._completed_at = self._now()

    def _stopped(self) -> None:
        if self._established_at is not None:
            self._trained += self._now() - self._established_at
            self._established_at = None

    def judge(self) -> None:
        """Whether a planned change has stopped training for too long."""
        if self._planned is None:
            return
        at, cause = self._planned
        undisturbed = not any(fault > at - AFTERMATH_SECONDS for fault in self._faults)
        if self._now() - at > PLANNED_SECONDS and undisturbed and self._raised_at < at:
            violated("I10", f"{cause} broke a round and there was no next one for {self._now() - at:.0f} s")

    def judge_training(self) -> None:
        """Where nothing but the size was changed: has there been training for most of the time?"""
        self.judge()
        if self._began is None or self._faults:
            return
        running = 0.0 if self._established_at is None else self._now() - self._established_at
        whole = (self._now() if self._completed_at is None else self._completed_at) - self._began
        if self._trained + running < TRAINED * (whole - STOP_SECONDS):
            violated("I10", f"{self._trained + running:.0f} of {whole:.0f} s were trained")
