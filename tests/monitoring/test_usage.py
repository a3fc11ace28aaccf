"""What each team used (docs/operate/many-teams.md), as promtool computes it from series that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.generate import NAMESPACE
from tests.monitoring.prometheus import POD, STANDBY, promtool
from tests.unit.test_usage_queries import QUERIES

PERIOD, HURRIED = "30d", "3d"
"""What the queries ask for, and what is asked here: promtool's tests take no more than 10,000 samples."""
A_DAY = 24 * 12
"""Samples, one every five minutes."""
ANSWERS: dict[str, dict[str, float]] = {
    "pod hours in running rounds": {"team-a": 4 * 72 + 2 * 24, "team-b": 0},
    "pod hours that were asked for": {"team-a": 5 * 72, "team-b": 3 * 72},
    "GPU hours": {"team-a": 8 * 24},
    "goodput": {"team-a": 0.5},
}
"""Of three days, by the beginning of the question."""


def of_job(metric: str, job: str, values: str, pod: str = POD) -> dict[str, str]:
    """A series of the operator, of a job TEAM/NAME."""
    namespace, name = job.split("/")
    scraped = f'namespace="{NAMESPACE}", pod="{pod}"'
    labels = f'{scraped}, job_namespace="{namespace}", job_name="{name}"'
    return {"series": f"elasticjob_job_{metric}{{{labels}}}", "values": values}


def of_pod(pod: str, job: str, phase: str) -> list[dict[str, str]]:
    """The series of kube-state-metrics of a pod with eight GPUs in team-a."""
    where = f'namespace="team-a", pod="{pod}"'
    named = f', label_elasticjob_dev_job_name="{job}"' if job else ""
    asked = f'{where}, container="train", node="n", resource="nvidia_com_gpu", unit="integer"'
    return [
        {"series": f"kube_pod_container_resource_requests{{{asked}}}", "values": f"8x{3 * A_DAY}"},
        {"series": f"kube_pod_labels{{{where}{named}}}", "values": f"1x{3 * A_DAY}"},
        {"series": f'kube_pod_status_phase{{{where}, phase="Running"}}', "values": phase},
        {"series": f'kube_pod_status_phase{{{where}, phase="Succeeded"}}', "values": f"1x{3 * A_DAY}"},
    ]


SERIES = [
    # The leading operator changes after a day; a job ends then, and leaves its pod behind.
    of_job("members", "team-a/a", f"4x{A_DAY} stale"),
    of_job("members", "team-a/a", f"_x{A_DAY + 1} 4x{2 * A_DAY}", STANDBY),
    of_job("members", "team-a/b", f"2x{A_DAY} stale"),
    of_job("members", "team-b/waits", f"0x{3 * A_DAY}"),
    of_job("wanted_pods", "team-a/a", f"5x{3 * A_DAY}"),
    of_job("wanted_pods", "team-b/waits", f"3x{3 * A_DAY}"),
    of_job("goodput_ratio", "team-a/a", f"0.75x{3 * A_DAY}"),
    of_job("goodput_ratio", "team-a/b", f"0.25x{3 * A_DAY}"),
    *of_pod("b-0-0", "b", f"1x{A_DAY} 0x{2 * A_DAY}"),
    *of_pod("of-nobody", "", f"1x{3 * A_DAY}"),
]


def test_promtool_accepts_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"used:{number}", "expr": query} for number, query in enumerate(QUERIES.values())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "used", "rules": rules}]}))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("question", ANSWERS)
def test_a_query_gives_what_its_question_asks_for(tmp_path: Path, question: str) -> None:
    (query,) = (query for asked, query in QUERIES.items() if asked.startswith(question))
    assert PERIOD in query
    by = "namespace" if question == "GPU hours" else "job_namespace"
    expected = [{"labels": f'{{{by}="{team}"}}', "value": value} for team, value in ANSWERS[question].items()]
    test: dict[str, Any] = {
        "interval": "5m",
        "input_series": SERIES,
        "promql_expr_test": [
            {"expr": query.replace(PERIOD, HURRIED), "eval_time": HURRIED, "exp_samples": expected}
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"evaluation_interval": "5m", "tests": [test]}))
    done = promtool("test", "rules", "test.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_query_has_an_answer_here() -> None:
    assert len(ANSWERS) == len(QUERIES)
