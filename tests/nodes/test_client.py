"""The command line where kubelets give logs with timestamps and the operator runs in pods."""

from __future__ import annotations

import json
import signal

import pytest

from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release
from tests.e2e.test_client import call, results, said
from tests.nodes.job import NodesJob

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]


def test_logs_of_a_round_and_since_a_failure(job: NodesJob) -> None:
    """A round's log ends when the next one begins; what comes after a failure has the round that followed."""
    job.strike(job.pids(job.member(1))[0], signal.SIGKILL)
    job.training(2, members=2)

    def rounds(*words: str) -> set[str]:
        """Those that the handler's own lines name."""
        lines = call(job, "logs", job.name, "--rank", "0", *words).stdout.splitlines()
        named = (line.partition(": group rank ")[0].rpartition("round ") for line in lines)
        return {number for _, found, number in named if found and number.isdigit()}

    assert rounds() >= {"1", "2"}
    assert rounds("--round", "1") == {"1"}
    assert "1" not in rounds("--round", "2")
    assert "2" in rounds("--since-failure")
    times = [line["time"] for line in _lines(job, "--all")]
    assert times == sorted(times)


def _lines(job: NodesJob, *words: str) -> list[dict[str, str]]:
    return [
        json.loads(line) for line in call(job, "logs", job.name, *words, "-o", "json").stdout.splitlines()
    ]


def test_the_operator_is_killed_by_a_drill(job: NodesJob, installed: Release[KubeletCluster]) -> None:
    assert set(results(job).values()) == {"ok"}
    leader = installed.leader()
    cost = said(job, "drill", job.name, "--kill", "operator", "--yes")
    print("\n".join(cost["sentences"]))
    assert (cost["killed"], cost["roundWentOn"]) == ([leader], True)
    assert cost["leader"] == installed.leader()
    installed.operators()
    assert job.goes_on() == 1
