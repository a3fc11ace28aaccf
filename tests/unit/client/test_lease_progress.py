"""Step and goodput are those of the leader's Lease while a person looks, or say how old they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest
from click.testing import Result

from elasticjob_client.explain.lease_progress import age_seconds, leader_pod, with_report
from tests.unit.client.clients import BOTH
from tests.unit.client.conftest import body
from tests.unit.client.made import NOW, after_a_loss, ago, conditions
from tests.unit.client.server import JOBS, Server, refusal

LEASE = "/apis/coordination.k8s.io/v1/namespaces/research/leases/mnist-0-0"
Run = Callable[..., Result]
REPORT = {
    "version": 1,
    "nonce": "n",
    "firstStep": 1801,
    "step": 2100,
    "firstStepMilliseconds": 4015,
    "trainingMilliseconds": 113_000,
}


def lease(report: dict[str, Any] | str = REPORT) -> dict[str, Any]:
    text = report if isinstance(report, str) else json.dumps(report)
    metadata = {"name": "mnist-0-0", "annotations": {"elasticjob.dev/progress": text}}
    return {"metadata": metadata, "spec": {"renewTime": ago(1).replace("Z", ".000000Z")}}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("reading", "top"):
        monkeypatch.setattr(f"elasticjob_client.cli.{module}.now", lambda: NOW)


def reported(seconds: float) -> dict[str, Any]:
    """The status has step 2000, which was read so long ago."""
    found = body()
    found["status"]["progress"]["lastReportTime"] = ago(seconds)
    return found


def test_what_the_leader_says_is_shown(server: Server, run: Run) -> None:
    server.put(reported(55))
    server.answers[LEASE] = lease()
    assert "\nstep 2100; 378 ms per step; goodput 97 %; " in run("status", "mnist").stdout
    found = json.loads(run("status", "mnist", "-o", "json").stdout)
    assert (found["progress"]["step"], found["progressAgeSeconds"]) == (2100, 0)
    assert found["rounds"][0]["lastStep"] == 2100
    assert run("list").stdout.splitlines()[1].split()[5:7] == ["2100", "97"]
    (row,) = json.loads(run("top", "-o", "json").stdout)["items"]
    assert (row["job"]["step"], row["stepsPerSecond"]) == (2100, pytest.approx(1000 / 378))


def test_a_step_gets_old_while_training_hangs_though_the_lease_is_renewed(server: Server, run: Run) -> None:
    server.put(reported(55))
    server.answers[LEASE] = lease({**REPORT, "trainingMilliseconds": 50_000})
    assert "\nstep 2100 (63s ago); " in run("status", "mnist").stdout
    found = json.loads(run("status", "mnist", "-o", "json").stdout)
    assert found["progressAgeSeconds"] == 63


@pytest.mark.parametrize(("established", "age"), [(ago(118), 0), ("", None), ("9999-12-31T23:59:59Z", None)])
def test_without_a_time_of_the_last_step_it_has_no_age(established: str, age: int | None) -> None:
    job = after_a_loss()
    assert job.status
    current = msgspec.structs.replace(
        job.status.current_round,
        established_time=datetime.fromisoformat(established.replace("Z", "+00:00")) if established else None,
    )
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, current_round=current))
    assert age_seconds(with_report(job, json.dumps(REPORT)), NOW) == age


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, "Forbidden", "no", "mnist-0-0"),
        refusal(404, "NotFound", "gone", "mnist-0-0"),
        lease("{"),
        lease({**REPORT, "firstStepMilliseconds": 1}),  # of another round
        lease({**REPORT, "step": 1900}),
        lease({**REPORT, "step": -1}),
        lease({**REPORT, "step": 1 << 60}),
        {"metadata": {"name": "mnist-0-0"}, "spec": {}},
    ],
)
def test_otherwise_it_says_its_age(server: Server, run: Run, answer: Any) -> None:
    server.put(reported(55))
    server.answers[LEASE] = answer
    assert "\nstep 2000 (55s ago); 412 ms per step; goodput 97 %; " in run("status", "mnist").stdout
    assert run("list").stdout.splitlines()[1].split()[5:8] == ["2000", "(55s", "ago)"]
    (row,) = json.loads(run("list", "-o", "json").stdout)["items"]
    assert (row["step"], row["stepAgeSeconds"]) == (2000, 55)


def test_what_has_ended_is_not_asked_and_has_no_age(server: Server, run: Run) -> None:
    ended = reported(5500)
    ended["status"].update(terminalState="Complete", conditions=conditions("Complete", "over"))
    server.put(ended)
    assert "\nstep 2000; 412 ms per step" in run("status", "mnist").stdout
    assert run("list").stdout.splitlines()[1].split()[5:7] == ["2000", "97"]
    assert not [path for _, path, _ in server.asked if "/leases/" in path]


@pytest.mark.parametrize("client", BOTH)
def test_programs_have_it_from_both_clients(server: Server, client: Any) -> None:
    server.put(reported(55))
    server.answers[LEASE] = lease()
    job = client(lambda jobs: jobs.get("mnist"), [], [])
    assert job.status.progress.step == 2000
    fresh = client(lambda jobs: jobs.refreshed(job), [], [])
    assert fresh.status.progress.step == 2100


def test_goodput_is_counted_as_the_operator_counts() -> None:
    """It says 1 % after the first step; a hundred seconds later nothing more is lost."""
    job = after_a_loss(
        startTime=ago(130),
        progress={
            "step": 1801,
            "goodputPercent": 1,
            "lostByCause": [{"cause": "Started", "milliseconds": 13000}],
        },
    )
    assert leader_pod(job) == "mnist-0-0"
    found = with_report(job, json.dumps(REPORT))
    assert found.status
    assert found.status.progress
    assert found.status.progress.goodput_percent == 90


def test_the_server_is_asked_once_for_each_of_the_first_jobs(server: Server, run: Run) -> None:
    many = [{**reported(55), "metadata": {**body()["metadata"], "name": f"job-{n}"}} for n in range(40)]
    server.answers[JOBS] = {"kind": "List", "metadata": {}, "items": many}
    assert run("list").exit_code == 0
    assert len([path for _, path, _ in server.asked if "/leases/" in path]) == 20
