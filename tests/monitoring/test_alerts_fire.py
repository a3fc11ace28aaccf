"""Each alert fires by a real fault: the operator's own metrics, scraped and judged by a real Prometheus.

The tests are in one order, because each fault stays in the metrics for a while, as it would at night.
"""

from __future__ import annotations

import pytest

from tests.monitoring.stage import NAMESPACE, ZONE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]


def test_none_fires_while_all_is_well(stage: Stage) -> None:
    stage.job("calm").train(stage.nodes[1])
    assert {alert for alert in stage.alerts if stage.prometheus.firing(alert)} == set()


def test_jobs_break_on_a_node_and_in_a_zone(stage: Stage) -> None:
    stage.break_jobs()
    node = stage.fires("ElasticJobNodeBreaksJobs", node=stage.nodes[0])
    assert node["annotations"]["summary"] == f"3 jobs have just failed on the node {stage.nodes[0]}"
    assert f"on {stage.nodes[0]} in the zone {ZONE}," in node["annotations"]["description"]
    zone = stage.fires("ElasticJobZoneBreaksJobs", zone=ZONE)
    assert zone["annotations"]["summary"] == f"5 jobs have just failed on nodes of the zone {ZONE}"


def test_restarts_use_up_a_limit(stage: Stage) -> None:
    """Of the jobs that have just lost a pod."""
    which = {"job_namespace": NAMESPACE, "job_name": "loses-0", "account": "infrastructure"}
    found = stage.fires("ElasticJobRestartsBurnBudget", **which)
    assert found["annotations"]["summary"] == f"{NAMESPACE}/loses-0 has 1 restarts left for infrastructure"


def test_a_job_makes_no_progress(stage: Stage) -> None:
    stage.hang()
    found = stage.fires("ElasticJobNoProgress", job_name="hangs")
    assert found["annotations"]["summary"] == f"{NAMESPACE}/hangs trains without a new step"
    assert found["annotations"]["runbook_url"] == "docs/operate/runbooks/no-progress.md"


def test_goodput_is_low(stage: Stage) -> None:
    """The job has hung for longer than it trained, and then repeats its steps."""
    stage.repeat()
    stage.fires("ElasticJobGoodputLow")


def test_passes_are_late(stage: Stage) -> None:
    with stage.slow():
        stage.fires("ElasticJobPassesLate")
    stage.ends("ElasticJobPassesLate")


def test_writes_fail(stage: Stage) -> None:
    with stage.refused():
        found = stage.fires("ElasticJobWritesFail")
        assert found["annotations"]["summary"] == "The operator cannot write 1 objects"
    stage.ends("ElasticJobWritesFail")


def test_a_job_waits_for_fencing(stage: Stage) -> None:
    with stage.dark():
        found = stage.fires("ElasticJobWaitingForFencing", job_name="dark")
        assert "team/dark waits for proof" in found["annotations"]["summary"]


def test_a_watch_is_blind(stage: Stage) -> None:
    with stage.deaf():
        found = stage.fires("ElasticJobWatchBlind", kind="pods")
        assert "does not see pods" in found["annotations"]["summary"]
    stage.ends("ElasticJobWatchBlind")


def test_no_operator_leads(stage: Stage) -> None:
    with stage.leaderless():
        stage.fires("ElasticJobNoLeader")
    stage.leads()
    stage.ends("ElasticJobNoLeader")
