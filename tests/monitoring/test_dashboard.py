"""Each query of the dashboard has an answer: the operator's own metrics, while faults are struck.

The alerts' tests strike the faults. Without them, the story of the picture is played.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.generate import NAMESPACE as OPERATORS
from devcluster.wait import wait_for
from tests.monitoring.drawing import draw
from tests.monitoring.picture import play
from tests.monitoring.prometheus import promtool
from tests.monitoring.shown import Series, Window, asked, choices, dashboard, expression, panels
from tests.monitoring.stage import NAMESPACE, ZONE, Stage

QUERIES = [
    pytest.param(panel, target, id=f"{panel['title']}-{target['refId']}")
    for panel in panels()
    for target in panel["targets"]
]
pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]
CHOSEN = {"namespace": OPERATORS, "operator": "elasticjob", "job_namespace": NAMESPACE, "runbooks": "docs"}


def test_promtool_accepts_every_query(tmp_path: Path) -> None:
    window = Window(0, 3600)
    chosen = {**CHOSEN, "job_name": "mnist"}
    texts = {expression(panel, target, chosen, window) for panel in panels() for target in panel["targets"]}
    rules = [{"record": f"shown:{number}", "expr": text} for number, text in enumerate(sorted(texts))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]}))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


class Struck:
    """A stage on which faults were struck, and the time of that."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        if "hangs" in stage.jobs:
            self.job = "hangs"
        else:
            self.job = play(stage)
        if "ends" not in stage.jobs:
            stage.end()
        ended = 'elasticjob_finished_jobs_total{reason="DeadlineExceeded"} >= 1'
        wait_for(lambda: stage.prometheus.query(ended), 60, "the end of a job is scraped")
        self.chosen = {**CHOSEN, "job_name": self.job}
        # The last point of a count may be a minute ahead.
        self.window = Window(stage.began, time.time() + 60)

    def series(self, panel: dict[str, Any], target: dict[str, Any]) -> list[Series]:
        """What a query has given at any time."""
        return asked(self.stage.prometheus, panel, target, self.chosen, self.window, over_time=True)

    def panel(self, title: str) -> dict[str, tuple[float, ...]]:
        """The values of a panel over time, by their names."""
        (panel,) = (one for one in panels() if one["title"] == title)
        return {
            one.name: tuple(value for _, value in one.points)
            for target in panel["targets"]
            for one in self.series(panel, target)
        }


@pytest.fixture(scope="module")
def struck(stage: Stage) -> Struck:
    return Struck(stage)


@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_a_query_has_an_answer(struck: Struck, panel: dict[str, Any], target: dict[str, Any]) -> None:
    assert struck.series(panel, target), expression(panel, target, struck.chosen, struck.window)


def test_people_can_choose_what_there_is(struck: Struck) -> None:
    found = dict(choices(struck.stage.prometheus, struck.chosen))
    assert found["namespace"] == [OPERATORS]
    assert found["operator"] == ["elasticjob"]
    assert found["job_namespace"] == [NAMESPACE]
    assert struck.job in found["job_name"]
    assert set(found) == {v["name"] for v in dashboard()["templating"]["list"] if v["type"] == "query"}


def test_a_node_that_breaks_jobs_is_seen(struck: Struck) -> None:
    node = struck.stage.nodes[0]
    assert max(struck.panel("Nodes on which jobs have just failed")[f"{node} {ZONE}"]) >= 3
    assert max(struck.panel("Charges by cause and account")["PodLost (infrastructure)"]) >= 3
    assert "ElasticJobNodeBreaksJobs" in struck.panel("Alerts")
    assert max(struck.panel("Firing alerts")["Firing alerts"]) >= 1


def test_the_picture_is_drawn(struck: Struck, tmp_path: Path) -> None:
    draw(struck.stage.prometheus, struck.chosen, struck.window, tmp_path / "dashboard.png")
    assert 50_000 < (tmp_path / "dashboard.png").stat().st_size < 400_000
