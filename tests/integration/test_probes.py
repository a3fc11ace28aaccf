"""What kubelet is told about the operator's process: blind, hung, blocked, or only without an API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devcluster import kubeconfig
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.ports import PortClaims
from devcluster.proxy import TcpProxy
from devcluster.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

DEADLINE = 60.0


class Probed:
    """The operator with faults, behind a link that can be cut."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, port: int) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._faults = folder / "faults"
        self._faults.mkdir()
        self._http = ApiClient(f"http://127.0.0.1:{port}")
        self.log = folder / "log"
        self.link: TcpProxy = cluster.proxy()
        self.link.refuse()
        token = cluster.kubectl("-n", namespace, "create", "token", "default").stdout.strip()
        config = kubeconfig.write(folder / "config", self.link.server, cluster.ca_file, token)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.integration.faulty_operator", "--namespace", namespace),
                    f"--health-probe-bind-address=127.0.0.1:{port}",
                ],
                env={**os.environ, "KUBECONFIG": str(config), "FAULTS": str(self._faults)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, what: str) -> tuple[int, dict[str, Any]]:
        """Status and answer, as kubelet gets it; status 0 if there is none in time."""
        answer = self._http.request("GET", f"/{what}", headers={"Connection": "close"}, timeout=3.0)
        return answer.status, answer.json() if answer.status else {}

    def waits(self) -> str:
        """What it says that jobs wait for."""
        return self._http.request("GET", "/waits", headers={"Connection": "close"}, timeout=3.0).text

    def metrics(self) -> dict[str, float]:
        """What Prometheus gets, by series."""
        text = self._http.request("GET", "/metrics", headers={"Connection": "close"}, timeout=5.0).text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {series: float(value) for series, _, value in lines}

    def says(self, what: str, status: int, text: str = "") -> None:
        """Wait for that answer, with that text among the problems."""

        def so() -> bool:
            found, answer = self.ask(what)
            return found == status and text in "; ".join(answer.get("problems", []))

        wait_for(so, DEADLINE, lambda: f"{what} {status} {text!r}, not {self.ask(what)}", interval=0.1)

    def well(self) -> None:
        """Each answer is kept for four times as long as it took to make."""
        self.says("readyz", 200)
        self.says("livez", 200)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        there = self._faults / name
        there.touch()
        try:
            yield
        finally:
            there.unlink()

    def apply(self, replicas: int, **spec: Any) -> None:
        job = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "job", "namespace": self._namespace},
            "spec": {"replicas": replicas, **spec},
        }
        self._cluster.kubectl("apply", "-f", "-", input=json.dumps(job))


@pytest.fixture
def probed(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Probed]:
    binding = f"--serviceaccount={namespace}:default"
    installed.kubectl("-n", namespace, "create", "rolebinding", "all", "--clusterrole=cluster-admin", binding)
    ports = PortClaims()
    made = Probed(installed, namespace, tmp_path, ports.take())
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        ports.release()
        print(made.log.read_text()[-8000:])


# shows: the operator's watches bring nothing, a pass hangs, or its event loop is stuck
def test_the_probes(probed: Probed) -> None:
    # No API server yet: a restart would not bring it.
    probed.says("readyz", 503, "starting")
    assert probed.ask("livez")[0] == 200
    probed.link.restore()
    probed.well()
    assert probed.ask("readyz")[1]["ready"] is True

    # It goes away and comes back.
    probed.link.refuse()
    probed.says("readyz", 503, "is interrupted")
    wait_for(
        lambda: min(probed.ask("livez")[1]["heardSeconds"].values()) > 4.0,
        DEADLINE,
        "nothing was heard for twice as long as a blind watch may be silent",
        interval=0.1,
    )
    assert probed.ask("livez")[0] == 200
    probed.link.restore()
    probed.well()

    # A watch brings nothing while the API server answers.
    with probed.fault("blind"):
        probed.says("livez", 503, "/pods for")
        probed.says("readyz", 503)
    probed.well()

    # The same for jobs: their list shows what the watch should have brought.
    probed.apply(2)
    probed.well()
    with probed.fault("blind-jobs"):
        probed.apply(3)
        probed.says("livez", 503, "/elasticjobs for")
    probed.apply(4)
    probed.well()

    # A pass hangs.
    with probed.fault("hang"):
        probed.apply(5)
        probed.says("livez", 503, "/job has hung for")
    probed.well()

    # The event loop stands: there is no answer.
    with probed.fault("block"):
        probed.says("livez", 0)
    probed.well()

    # A task that never ends has ended. That is for good.
    with probed.fault("list"):
        probed.says("livez", 503, "the task relist has ended")
    probed.says("readyz", 503)
    log = probed.log.read_text()
    assert "not alive: " in log
    assert "alive again" in log


def test_what_jobs_wait_for(probed: Probed) -> None:
    wait_for(lambda: "starting" in probed.waits(), DEADLINE, probed.waits, interval=0.1)
    probed.link.restore()
    probed.well()
    assert probed.waits() == "no job waits for anything\n"
    probed.apply(2, activeDeadlineSeconds=3600)
    line = r"\S+/job waits for the job to end .+ \(activeDeadlineSeconds\): 3\d\d\d of 3600 s left\n"
    wait_for(lambda: re.fullmatch(line, probed.waits()), DEADLINE, probed.waits, interval=0.1)


def test_the_metrics_of_a_job_come_and_go_with_it(probed: Probed, installed: Cluster, namespace: str) -> None:
    probed.link.restore()
    probed.well()
    job = f'job_name="job",job_namespace="{namespace}"'
    assert not any(job in series for series in probed.metrics())
    probed.apply(replicas=3)

    def counted() -> bool:
        found = probed.metrics()
        patches = [s for s in found if s.startswith("elasticjob_api_requests_total") and 'verb="patch"' in s]
        return (
            found.get(f"elasticjob_job_wanted_pods{{{job}}}") == 3.0
            and found["elasticjob_wanted_pods"] == 3.0
            # These two are counted when they are over; the job's series are there before that.
            and found["elasticjob_pass_seconds_count"] >= 1.0
            and any("elasticjobs" in series and 'code="200"' in series for series in patches)
        )

    wait_for(counted, DEADLINE, lambda: f"the job is counted, not {probed.metrics()}")
    assert probed.metrics()["elasticjob_leading"] == 1.0
    installed.kubectl("-n", namespace, "delete", "elasticjob", "job")
    wait_for(lambda: not any(job in series for series in probed.metrics()), DEADLINE, "they are gone")
