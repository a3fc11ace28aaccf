"""One job's life, undisturbed and with the operator killed again and again at random moments: the status
tells the same story of both.

The same in virtual time, for many seeds, is ``tests/simulation/test_operator_kills.py``.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from devcluster.wait import wait_for
from tests.e2e.job import JobRun, Operator

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


KILLS = 100


@dataclass
class Killer:
    """Kills the operator, and starts it again, at random moments until it is stopped.

    A third of the kills come while the operator starts; the others within three seconds of its first pass.
    """

    operator: Operator
    random: random.Random
    kills: int = 0
    error: BaseException | None = None
    _read: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave a running operator behind."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(timeout=60)
        if self.error is not None:
            raise self.error

    def has_killed(self, times: int) -> None:
        """Wait until the operator has been killed so often."""
        wait_for(lambda: self.kills >= times or self.error, 600, f"{times} kills", interval=0.1)

    def _serves(self) -> bool:
        return b"serving " in self.operator.log.read_bytes()[self._read :]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.random.random() < 2 / 3:
                    wait_for(self._serves, 120, "the operator serves", interval=0.05)
                if self._stop.wait(self.random.uniform(0.0, 3.0)):
                    return
                self.operator.kill()
                self._read = self.operator.log.stat().st_size
                self.operator.restart()
                self.kills += 1
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            self.error = error


def live(job: JobRun, between: Callable[[int], None]) -> dict[str, Any]:
    """The life: losses, changes of size, a suspension, and a good end. Returns what the status tells of it;
    ``between`` is called after each event."""
    events: list[tuple[Callable[[], None], int]] = [
        (lambda: job.kill_worker(_pod(job, 1)), 2),
        (lambda: job.kill_pod(_pod(job, 1)), 2),
        (lambda: job.scale(3), 3),
        (lambda: job.kill_pod(_pod(job, 0)), 3),
        (lambda: job.scale(2), 2),
        (lambda: _delete(job, _pod(job, 0)), 2),
        (lambda: _suspend_and_resume(job), 2),
        (lambda: job.kill_worker(_pod(job, 0)), 2),
    ]
    job.apply(replicas=2, minReplicas=1, rendezvous={"lastCallTimeoutSeconds": 60})
    for number, (event, members) in enumerate([(_nothing, 2), *events], start=1):
        event()
        now = job.training(number, members=members)
        assert now["number"] == number, "each event makes one round"
        between(number)
        assert job.round()["number"] == number, "and a new operator makes none"
    job.stop()
    job.complete()
    status = job.status()
    return {
        "rounds": [(r["number"], r["cause"], r.get("account", ""), r["members"]) for r in job.rounds()],
        "charges": {
            a["name"]: sorted(
                (c.get("round", 0), c.get("podName", ""), c.get("cause", "")) for c in a.get("charges", [])
            )
            for a in status["accounts"]
        },
        "restarts": status["restarts"],
        "failure": status["lastFailure"]["round"],
    }


def _nothing() -> None:
    """The first round needs no event."""


def _pod(job: JobRun, rank: int) -> str:
    return str(job.member(rank)["podName"])


def _delete(job: JobRun, pod: str) -> None:
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", pod, "--wait=false")


def _suspend_and_resume(job: JobRun) -> None:
    job.patch(suspend=True)
    job.wait_for(
        lambda: all(pod["status"]["phase"] == "Failed" for pod in job.pods().values()),
        "no pod is left but those that had ended before",
    )
    assert job.condition("Suspended")["status"] == "True"
    job.patch(suspend=False)


@pytest.mark.slow
@pytest.mark.timeout(1500)
# shows: a pod is deleted by a user or another controller
# shows: the operator dies, at any moment
def test_status_stays_truthful(job: JobRun, operator: Operator) -> None:
    undisturbed = live(job, lambda _: None)
    assert Counter(cause for _, cause, *_ in undisturbed["rounds"]) == {
        "Started": 1,
        "WorkerFailed": 2,
        "PodLost": 2,
        "ScaledUp": 1,
        "ScaledDown": 1,
        "PodDeleted": 1,
        "Resumed": 1,
    }
    again = job.beside("again")
    seed = time.time_ns()
    print(f"seed {seed}")
    killer = Killer(operator, random.Random(seed))
    killer.start()
    try:
        disturbed = live(again, lambda number: killer.has_killed(KILLS * number // 9))
    finally:
        killer.stop()
    assert killer.kills >= KILLS
    assert disturbed == undisturbed
