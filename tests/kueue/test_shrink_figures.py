"""What it costs a job of 8 when half of its quota is wanted back: as a job that may get smaller, and as one
Workload that has to stop, which is all that Kueue can ask of any other job.

    make test-kueue ARGS="-m slow -s -k figures"

prints a table. Eight real torchruns take minutes to start on two cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import getloadavg
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.e2e.job import JobRun
from tests.e2e.test_planned_changes import digits, steps_once
from tests.kueue.stage import REQUESTS, Stage, labels
from tests.kueue.test_shrinking import ranks, trains_with

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow, pytest.mark.timeout(3600)]

LENDS_SECONDS = 60.0
"""For how long the lender keeps its quota: the same in both runs."""


class Reasons:
    """Why the job did not train, by the seconds of each reason, as one reads the condition Training."""

    def __init__(self, job: JobRun) -> None:
        self._job = job
        self.seconds: dict[str, float] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = Event()
        watcher = Thread(target=self._watch, args=(done,))
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: Event) -> None:
        last = time.monotonic()
        while not done.wait(0.1):
            training = self._job.condition("Training")
            now = time.monotonic()
            if training.get("status") != "True":
                reason = str(training.get("reason"))
                self.seconds[reason] = self.seconds.get(reason, 0.0) + now - last
            last = now


def took(wait: Callable[[], object]) -> float:
    began = time.monotonic()
    wait()
    return time.monotonic() - began


def steps(log: Path) -> int:
    return len(log.read_text().splitlines())


def lend(stage: Stage, job: JobRun) -> float:
    """The lender asks for its 4, and makes its pods when it has them; seconds until all have nodes."""
    began = time.monotonic()
    stage.ask("lender", "b", 4)
    job.wait_for(lambda: stage.admitted("lender"), "the lender has its quota")
    container = {"name": "c", "image": "x", "command": ["sleep", "600"], "resources": {"requests": REQUESTS}}
    names = [f"lender-{number}" for number in range(4)]
    for name in names:
        meta = {"name": name, "namespace": stage.namespace}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
        stage.cluster.kubectl("create", "-f", "-", input=json.dumps(body))
    path = f"/api/v1/namespaces/{stage.namespace}/pods/"
    job.wait_for(
        lambda: all(stage.cluster.read(path + name)["spec"].get("nodeName") for name in names),
        "the lender's pods have nodes",
    )
    return time.monotonic() - began


@pytest.mark.parametrize("least", [4, None], ids=["minReplicas 4", "one Workload"])
def test_figures_of_a_job_of_8_whose_lender_wants_4_back(
    stage: Stage, job: JobRun, least: int | None
) -> None:
    job.deadline = 1200.0  # eight real torchruns, beside whatever else the machine does
    flavor = stage.flavor()
    stage.queue("a", 4, flavor)
    stage.queue("b", 4, flavor)
    log = job.folder / "log.jsonl"
    job.labels, job.resources = labels("a"), {"requests": REQUESTS}
    spec: dict[str, Any] = {"replicas": 8, "scaling": {"scaleUpDelaySeconds": 0}}
    job.apply(digits(job, log), **(spec if least is None else {**spec, "minReplicas": least}))
    trains_with(job, 8)
    before, reasons = ranks(job), Reasons(job)
    load = getloadavg()[0]
    with reasons.watched():
        first = steps(log)
        admitted = lend(stage, job)
        if least is not None:
            trains_with(job, least)
            assert ranks(job) == {pod: rank for pod, rank in before.items() if rank < least}
        time.sleep(LENDS_SECONDS)  # the length of the run, not a wait for anything
        meanwhile = steps(log) - first
        stage.withdraw("lender")
        stage.cluster.kubectl(
            "-n", stage.namespace, "delete", "pods", "-l", "!elasticjob.dev/job-name", "--force"
        )
        back = took(lambda: trains_with(job, 8))
    not_training = {reason: round(seconds, 1) for reason, seconds in reasons.seconds.items()}
    print(
        f"\n| {least or 'one Workload'} | load {load:.1f} | lender's pods have nodes {admitted:.1f} s "
        f"| {meanwhile} steps until the lender leaves | {back:.1f} s until 8 train again "
        f"| not training {not_training} |"
    )
    steps_once(log)
    kept = {pod for pod, rank in ranks(job).items() if before.get(pod) == rank}
    if least is None:
        assert "Queued" in not_training
        assert not kept
    else:
        assert "Queued" not in not_training
        assert len(kept) >= least
        ends = [entry["end"]["drain"] for entry in job.status()["roundHistory"] if entry.get("end")]
        assert set(ends) == {"Stopped"}
