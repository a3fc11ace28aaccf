"""promtool's word on the rules: they are valid, each fires when it should and is silent when it should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from charts.generate import CHART, NAMESPACE
from tests.chart.helm import Helm, objects
from tests.monitoring.prometheus import POD, STANDBY, promtool

RULES = CHART / "files" / "alerts.yaml"
TESTS = Path(__file__).with_name("alerts.test.yaml")


def unit_tests(folder: Path, rules: str) -> tuple[bool, str]:
    """Whether these rules pass the tests of ``alerts.test.yaml``, and what promtool says."""
    (folder / "alerts.yaml").write_text(rules)
    text = TESTS.read_text()
    for word, pod in (("POD", POD), ("OTHER", STANDBY)):
        text = text.replace(f"{{{word}", f'{{namespace="{NAMESPACE}", pod="{pod}"')
    (folder / "test.yaml").write_text(text)
    done = promtool("test", "rules", "test.yaml", folder=folder)
    return done.returncode == 0, done.stdout + done.stderr


def test_the_file_is_a_valid_rule_file() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES.name, folder=RULES.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_chart_makes_of_it_is_valid(tmp_path: Path) -> None:
    selector = 'job=~"a|b", release!="x"'
    asked = {"enabled": True, "selector": selector, "runbookUrl": "https://git.example/elasticjob"}
    made = objects(Helm(tmp_path / "helm").template({"metrics": {"prometheusRule": asked}}))
    (rule,) = (one for one in made if one["kind"] == "PrometheusRule")
    assert selector in str(rule)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_and_is_silent_when_it_should(tmp_path: Path) -> None:
    passed, said = unit_tests(tmp_path, RULES.read_text())
    assert passed, said


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("or vector(0)", "or vector(1)"),
        ("> 180", "> 1800"),
        ("> 30\n", "> 3\n"),
        ("[1h])) > 0\n", "[1h])) >= 0\n"),
        ('state="Training"', 'state=~".+"'),
        ("> 1800", "> 180"),
        (">= 3\n        labels", ">= 2\n        labels"),
        ('zone!=""})) >= 5', 'zone!=""})) >= 1'),
        ("< 0.8", "< 0.99"),
        ("> 600", "> 60"),
        ("for: 2m", "for: 0m"),
        ("for: 5m", "for: 1m"),
    ],
)
def test_a_rule_that_is_another_is_noticed(tmp_path: Path, was: str, becomes: str) -> None:
    rules = RULES.read_text()
    assert was in rules
    passed, said = unit_tests(tmp_path, rules.replace(was, becomes))
    assert not passed, f"no unit test tells {was!r} from {becomes!r}: {said}"
