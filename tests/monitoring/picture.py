"""The picture of the dashboard in the documents: `python -m tests.monitoring.picture` (10 minutes).

A real operator serves five jobs, whose participants are played, and a real Prometheus scrapes it, with the
alerts as the chart has them. A node breaks three jobs, one of them twice; then a webhook that is down has a
say on the status of another. What Prometheus answers to the dashboard's queries is drawn.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from charts.generate import NAMESPACE as OPERATORS
from devcluster.cluster import Cluster
from tests.e2e.job import ROOT
from tests.integration.test_excluded_nodes import running
from tests.monitoring.drawing import draw
from tests.monitoring.shown import Window
from tests.monitoring.stage import NAMESPACE, Job, Stage

PICTURE = ROOT / "docs" / "pictures" / "dashboard.png"
SHOWN = "bert"
"""The job of the row about one job."""
_PODS = 2
_PATIENT = {"lastCallTimeoutSeconds": 1, "rejoinTimeoutSeconds": 120, "initialLastCallTimeoutSeconds": 5}
_REPORT_SECONDS = 8.0
_STEPS_PER_SECOND = 5.0
_CHECKPOINT = 50
"""Steps from one checkpoint to the next."""


@dataclass
class Training:
    """A job that is played, its pods, and where its steps are."""

    job: Job
    pods: list[str]
    round: int = 1
    first: int = 1
    step: int = 0
    since: float = 0.0

    def begin(self, round_number: int) -> None:
        """A round has begun: from the last checkpoint."""
        self.round, self.first, self.since = (
            round_number,
            self.step // _CHECKPOINT * _CHECKPOINT + 1,
            time.time(),
        )

    def report(self) -> None:
        """The leader says how far it has come."""
        passed = time.time() - self.since
        self.step = self.first + int(passed * _STEPS_PER_SECOND)
        self.job.report_steps(self.first, self.step, passed)

    def lose(self, slot: int) -> None:
        """The pod of this slot is killed, and the others join again."""
        lost = self.pods.pop(slot)
        self.job.lose(lost)
        broken = {"number": self.round, "phase": "Broken"}
        self.job.wait_for(
            lambda: broken.items() <= self.job.status()["currentRound"].items(), "the round ends"
        )
        self.job.join(*self.pods)
        name, _, attempt = lost.rpartition("-")
        self.pods.insert(slot, f"{name}-{int(attempt) + 1}")

    def go_on(self, slot: int) -> None:
        """The pod that takes its place joins, and the next round begins."""
        running(self.job, self.pods[slot])
        self.job.join(self.pods[slot])
        self.job.round(self.round + 1)
        self.begin(self.round + 1)


def play(stage: Stage, seconds: float = 20.0) -> str:
    """Strike faults on a stage on which nothing has happened, with ``seconds`` of training between them;
    returns the job that has most to tell."""
    places = dict(zip(("bert", "resnet", "whisper", "vit", "llama"), [0, 0, 0, 1, 2], strict=True))
    jobs = {}
    for name, node in places.items():
        job = stage.job(name)
        limits = {"infrastructure": {"maxRestarts": 3, "windowSeconds": 86400}}
        with stage.only(stage.nodes[node]):
            job.train("", pods=_PODS, minReplicas=_PODS, rendezvous=_PATIENT, failurePolicy=limits)
        jobs[name] = Training(job, [f"{name}-{slot}-0" for slot in range(_PODS)], since=time.time())
        _train(jobs, 1)
    _train(jobs, 2 * seconds)
    broken = [jobs[name] for name, node in places.items() if node == 0]
    for slot, again in enumerate((broken, [jobs[SHOWN]])):
        for one in again:
            one.lose(slot)
        for one in again:
            one.go_on(slot)
        _train(jobs, 2 * seconds)
    stage.end()
    with stage.refused(2):
        _train(jobs, seconds)
    _train(jobs, seconds)
    return SHOWN


def _train(jobs: dict[str, Training], seconds: float) -> None:
    until = time.time() + seconds
    while True:
        for one in jobs.values():
            one.report()
        if time.time() >= until:
            return
        time.sleep(min(_REPORT_SECONDS, max(0.0, until - time.time())))


def main() -> None:
    """Entry point."""
    with tempfile.TemporaryDirectory() as folder, Cluster(nodes=3) as cluster:
        stage = Stage(cluster, Path(folder), hurry=False)
        began = time.time()
        try:
            shown = play(stage, 45.0)
            chosen = {"namespace": OPERATORS, "operator": "elasticjob", "job_namespace": NAMESPACE}
            window = Window(began, time.time())
            draw(stage.prometheus, {**chosen, "job_name": shown}, window, PICTURE)
        finally:
            stage.stop()
    print(f"drew {PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
