"""The API server is away or slow: training goes on, and what it costs in good times is little."""

# shows: the API server is away

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests import operator_account
from tests.e2e.job import SLOWED, JobRun, Operator

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

OUTAGE_SECONDS = 30.0


def outage(cluster: Cluster, job: JobRun) -> None:
    """Half a minute without an API server; counts the steps that are made meanwhile."""
    server = cluster.component("apiserver")
    server.kill()
    began, before = time.monotonic(), len(job.steps())
    wait_for(
        lambda: time.monotonic() - began > OUTAGE_SECONDS,
        OUTAGE_SECONDS + 10,
        "the end of the outage",
        interval=0.5,
    )
    job.steps_in_outage = len(job.steps()) - before
    server.start()
    for name in ("scheduler", "controller-manager"):  # their own pauses of up to a minute are none of ours
        cluster.component(name).restart()


def test_away_during_training(job: JobRun, installed: Cluster) -> None:
    """I5."""
    job.apply()
    job.training(1, members=2)
    outage(installed, job)
    assert job.steps_in_outage > 50
    job.goes_on(1)
    assert job.round()["number"] == 1
    assert job.status()["restarts"] == 0
    job.stop()
    job.complete()


@pytest.mark.slow
def test_away_while_a_round_forms(job: JobRun, installed: Cluster) -> None:
    """I6: the round is formed when it is back."""
    job.apply()
    job.training(1, members=2)
    job.kill_pod("job-1-0")
    outage(installed, job)
    job.training(2, members=2)
    job.stop()
    job.complete()
    assert job.status()["restarts"] == 1


@pytest.mark.slow
# shows: every API write takes 10 s
def test_slow_writes_break_no_round(job: JobRun, installed: Cluster) -> None:
    """Every write takes 10 s for a minute, under three jobs: no pod counts as silent."""
    jobs = [
        job,
        *(JobRun(job.cluster, job.namespace, job.folder.parent / name, name) for name in ("second", "third")),
    ]
    for one in jobs:
        one.apply(replicas=2 if one is job else 1)
    for one in jobs:
        one.training(1)
    began = time.monotonic()
    with installed.slow_writes(10.0, [job.namespace], SLOWED):
        wait_for(lambda: time.monotonic() - began > 60, 90, "a minute of slow writes", interval=1.0)
    for one in jobs:
        one.goes_on(1)
        assert one.round()["number"] == 1, one.round()
        assert one.status()["restarts"] == 0
        one.stop()
    for one in jobs:
        one.complete()


def test_requests_per_participant_and_round(job: JobRun, installed: Cluster) -> None:
    """Two requests or fewer for each participant in a round, the watches stay open.

    Renewals are no part of it: they come with time, not with rounds.
    """
    size = 3
    job.apply(replicas=size)
    job.training(1, members=size)
    began = datetime.fromisoformat(job.round()["establishedTime"].replace("Z", "+00:00"))
    job.kill_worker("job-1-0")
    job.training(2, members=size)
    ended = datetime.fromisoformat(job.round()["establishedTime"].replace("Z", "+00:00"))
    by_pods = [
        e for e in audited(installed.audit_log, job.namespace) if e["userAgent"] == "elasticjob-handler"
    ]
    requests = [
        (event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0], event["verb"])
        for event in without_renewals(by_pods)
        if began < _time(event["requestReceivedTimestamp"]) <= ended
    ]
    per_pod = Counter(pod for pod, _ in requests)
    assert set(per_pod) == {"job-0-0", "job-1-0", "job-2-0"}
    assert max(per_pod.values()) <= 2, requests
    assert {verb for _, verb in requests} == {"patch"}
    job.stop()
    job.complete()


def without_renewals(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All but the patches of Leases that say what the one before has said."""
    kept: list[dict[str, Any]] = []
    said: dict[str, object] = {}
    for event in events:
        name = event["objectRef"].get("name", "")
        annotations = event.get("requestObject", {}).get("metadata", {}).get("annotations")
        if annotations is None or said.get(name) != annotations:
            kept.append(event)
        said[name] = annotations
    return kept


def audited(path: Path, namespace: str, offset: int = 0) -> list[dict[str, Any]]:
    """The completed requests about one namespace, from a length of the log on."""
    found = []
    for line in path.read_bytes()[offset:].decode().splitlines():
        if f'"{namespace}"' in line and line.endswith("}"):
            event = json.loads(line)
            if event["stage"] == "ResponseComplete":
                found.append(event)
    return found


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.mark.slow
def test_operator_and_pods_speak_to_two_api_servers(
    job: JobRun, installed: Cluster, namespace: str, tmp_path: Path, operator: Operator
) -> None:
    """Watch caches of different age: what the operator sees late it does not undo (I1)."""
    operator.stop()
    second = installed.second_apiserver()
    by_second = operator_account.config(installed, second.server)
    other = Operator(installed, namespace, tmp_path / "operator-2.log", by_second)
    try:
        job.apply()
        job.training(1, members=2)
        job.kill_pod("job-0-0")
        job.training(2, members=2)
        other.kill()
        operator.restart()  # the first server again, in the middle of the round
        job.goes_on(2)
        job.kill_pod("job-1-0")
        job.training(3, members=2)
        assert [r["number"] for r in job.rounds()] == [1, 2, 3]
        assert job.status()["restarts"] == 2
        job.stop()
        job.complete()
    finally:
        other.stop()
        second.stop()
