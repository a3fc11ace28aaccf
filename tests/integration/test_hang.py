"""A hang as the participants see it: two real torchruns with gloo and a real API server; the test plays the
operator, so that what the agents say, and when, can be told from what an operator makes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster.access import ClusterAccess
from devcluster.wait import wait_for
from elasticjob.api.connection import connect
from elasticjob.api.errors import NotFound
from elasticjob.api.leases import HttpLeaseApi, Lease
from elasticjob.contract import names
from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import FailureReport, ProgressReport, RoundReport
from elasticjob.contract.round_record import RoundRecord

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).parent / "hanging_worker.py"
PODS = ("a", "b")
NPROC = 2
DEADLINE = 120.0


class Agents:
    """Two torchruns outside the cluster that play pods, and their Leases."""

    def __init__(self, cluster: ClusterAccess, namespace: str, folder: Path) -> None:
        self._api = HttpLeaseApi(connect(str(cluster.kubeconfig)), namespace)
        self._folder = folder
        self.processes = {pod: self._start(cluster, namespace, pod) for pod in PODS}

    def _start(self, cluster: ClusterAccess, namespace: str, pod: str) -> subprocess.Popen[bytes]:
        spec = {"containers": [{"name": "x", "image": "x"}], "nodeSelector": {"no": "node"}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec}
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(body))
        uid = cluster.kubectl("-n", namespace, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}").stdout
        with self.log(pod).open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "elasticjob.run", f"--rdzv-endpoint={namespace}/job"),
                    f"--rdzv-backend={names.BACKEND}",
                    f"--rdzv-conf=kubeconfig={cluster.kubeconfig}",
                    f"--nproc-per-node={NPROC}",
                    "--nnodes=2",
                    "--max-restarts=0",
                    str(SCRIPT),
                ],
                env={**os.environ, names.POD_NAME_ENV: pod, names.POD_UID_ENV: uid, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, pod: str) -> Path:
        return self._folder / f"{pod}.log"

    def said(self, pod: str, key: str) -> str:
        """An annotation of the pod's Lease, "" if it is not there."""
        lease = self.lease(pod)
        return "" if lease is None else lease.annotations.get(key, "")

    def lease(self, pod: str) -> Lease | None:
        try:
            return self._api.read(pod)
        except NotFound:
            return None

    def announced(self, pod: str, but: tuple[str, ...] = ()) -> ParticipantRecord:
        """Wait until it asks for a place."""

        def joining() -> ParticipantRecord | None:
            text = self.said(pod, names.PARTICIPANT_ANNOTATION)
            record = ParticipantRecord.parse(text) if text else None
            return record if record and record.state == "Joining" and record.id not in but else None

        return wait_for(joining, DEADLINE, f"{pod} announces itself")

    def report(self) -> RoundReport | None:
        text = self.said("a", names.REPORT_ANNOTATION)
        return RoundReport.parse(text) if text else None

    def progress(self) -> ProgressReport:
        return ProgressReport.parse(self.said("a", names.PROGRESS_ANNOTATION))

    def publish(self, record: RoundRecord) -> None:
        """As the operator."""
        name = names.round_lease("job")
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "annotations": {names.ROUND_ANNOTATION: record.dump()}},
        }
        self._api.take_over(name, body)

    def form(self, number: int, but: tuple[str, ...] = ()) -> RoundRecord:
        records = [self.announced(pod, but) for pod in PODS]
        ids = tuple(record.id for record in records)
        record = RoundRecord(
            "uid", number, "Active", f"n{number}", ids, records[0].endpoint, limits=Limits(hang_timeout=3)
        )
        self.publish(record)
        return record

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for child in _orphans(self._folder):
            os.kill(child, signal.SIGKILL)
        self._api.stop()
        for pod in PODS:
            print(f"--- {pod}\n{self.log(pod).read_text(errors='replace')[-6000:]}")


def _orphans(folder: Path) -> list[int]:
    """Workers whose torchrun has gone: their output is in our folder."""
    found = []
    for stderr in Path("/proc").glob("[0-9]*/fd/2"):
        try:
            if Path(os.readlink(stderr)).is_relative_to(folder):
                found.append(int(stderr.parts[2]))
        except OSError:
            continue
    return found


@pytest.fixture
def agents(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[Agents]:
    made = Agents(cluster, namespace, tmp_path)
    yield made
    made.end()


def test_a_hang_leaves_the_stack_of_every_worker_and_costs_no_restart(agents: Agents) -> None:
    """``--max-restarts=0``: torch must not see what we have ended as failures of its workers."""
    first = agents.form(1)
    wait_for(lambda: (r := agents.report()) is not None and r.hung, DEADLINE, "the leader reports the hang")
    report = agents.report()
    assert report is not None
    assert report.nonce == "n1"
    assert report.silent_milliseconds is not None
    assert re.fullmatch(r"no step after step 4 for \d+ s", report.message)
    progress = agents.progress()
    assert (progress.nonce, progress.first_step, progress.step) == ("n1", 0, 4)
    assert progress.first_step_milliseconds > 0
    assert report.silent_milliseconds >= 3000

    agents.publish(replace(first, phase="Broken", cause="Hang", message=report.message))
    second = agents.form(2, first.member_ids)
    for pod, ranks in (("a", (0, 1)), ("b", (2, 3))):
        text = agents.log(pod).read_text(errors="replace")
        dumps = re.split(r"round 1 hung; the stack of rank (\d) \(local rank \d, pid \d+\):", text)
        assert tuple(int(rank) for rank in dumps[1::2]) == ranks
        for rank, dump in zip(ranks, dumps[2::2], strict=True):
            assert "Fatal Python error: Aborted" in dump
            assert "the_other_thread" in dump
            assert ("the_stuck_one" in dump) == (rank == 1)
            assert ("train_one_step" in dump) == (rank != 1), (
                "where it waited, not what its peers' end made of it"
            )
        assert "Connection closed by peer" not in text
        failure = agents.said(pod, names.FAILURE_ANNOTATION)
        assert not failure or FailureReport.parse(failure).after_round_end

    for pod in PODS:

        def succeeded(pod: str = pod) -> bool:
            return (
                ParticipantRecord.parse(agents.said(pod, names.PARTICIPANT_ANNOTATION)).state == "Succeeded"
            )

        wait_for(succeeded, DEADLINE, f"{pod} has succeeded in round 2")
    agents.publish(replace(second, phase="Closed", outcome="Complete"))
    assert [process.wait(DEADLINE) for process in agents.processes.values()] == [0, 0]
    last = agents.progress()
    assert (last.nonce, last.step) == ("n2", 8), "the round's last step, without another renewal"
    assert last.first_step in range(5, 9)
