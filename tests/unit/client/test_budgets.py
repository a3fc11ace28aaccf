"""doctor JOB: disruption budgets that count pods before they train."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from lightkube.models.meta_v1 import LabelSelector

from elasticjob.contract.names import MEMBER_CONDITION, STANDBY_LABEL
from elasticjob_client.explain.budgets import checks
from elasticjob_client.resource import ElasticJob
from tests.unit.client.conftest import body
from tests.unit.client.made import conditions, job
from tests.unit.client.server import Server, refusal

BUDGETS = "/apis/policy/v1/namespaces/research/poddisruptionbudgets"
OF_JOB = {"elasticjob.dev/job-name": "mnist"}
TRAIN = {"name": "train", "image": "own:1", "command": ["torchrun", "train.py"]}
GATE = [{"conditionType": MEMBER_CONDITION}]
Run = Callable[..., Result]


def made(gates: Any = None, labels: Any = None, status: dict[str, Any] | None = None) -> ElasticJob:
    spec = {"containers": [{"name": "train"}], **({} if gates is None else {"readinessGates": gates})}
    return job(status, template={"metadata": {"labels": labels}, "spec": spec})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ({"matchLabels": OF_JOB}, True),
        ({"matchLabels": {**OF_JOB, "team": "vision"}}, True),
        ({"matchLabels": {**OF_JOB, "team": "speech"}}, False),
        ({"matchLabels": {"elasticjob.dev/job-name": "cifar"}}, False),
        ({}, True),
        (None, False),
        ({"matchLabels": OF_JOB, **expression(STANDBY_LABEL, "DoesNotExist")}, True),
        (expression("elasticjob.dev/slot", "Exists"), True),
        (expression("app", "Exists"), False),
        (expression("team", "DoesNotExist"), False),
        (expression("team", "In", "speech", "vision"), True),
        (expression("team", "In", "speech"), False),
        (expression("app", "In", "web"), False),
        (expression("team", "NotIn", "vision"), False),
        (expression("team", "NotIn", "speech"), True),
        (expression("app", "NotIn", "web"), True),
    ],
)
def test_budgets_select_as_kubernetes_does(selector: dict[str, Any] | None, selects: bool) -> None:
    mine = made(labels={"team": "vision"})
    read: Any = None if selector is None else LabelSelector.from_dict(selector)
    found = checks(mine, {"one": read})
    assert [(check.result, check.subject) for check in found] == [("unknown", "budget")] * selects


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        (made(), True),
        (made(gates=[{"conditionType": "example.com/other"}]), True),
        (made(gates="odd", labels=["odd"]), True),
        (made(gates=[{"conditionType": "example.com/other"}, *GATE]), False),
        (job(None), False),
        (made(status={"terminalState": "Complete", "conditions": conditions("Complete", "")}), False),
    ],
    ids=["none", "another gate", "of any shape", "the gate", "pods of others", "ended"],
)
def test_the_gate_of_members_makes_a_budget_right(mine: ElasticJob, says: bool) -> None:
    assert bool(checks(mine, {"one": LabelSelector()})) == says


def budget(name: str, selector: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"maxUnavailable": 1, "selector": selector}}


def said(run: Run) -> list[dict[str, Any]]:
    found = run("doctor", "mnist", "-o", "json")
    checks = json.loads(found.stdout)["items"]
    assert found.exit_code == 0, checks
    return [check for check in checks if check["subject"] == "budget"]


@pytest.fixture
def asked(server: Server) -> Server:
    mine = body()
    mine["spec"]["template"] = {"spec": {"containers": [TRAIN]}}
    server.put(mine)
    items = [
        budget("one", {"matchLabels": OF_JOB}),
        budget("two", {}),
        budget("other", {"matchLabels": {"a": "b"}}),
    ]
    server.answers[BUDGETS] = {"kind": "PodDisruptionBudgetList", "metadata": {}, "items": items}
    return server


@pytest.mark.usefixtures("asked")
def test_doctor_names_a_budget_that_counts_pods_before_they_train(run: Run) -> None:
    (check,) = said(run)
    assert check["result"] == "unknown"
    assert check["found"].startswith("the PodDisruptionBudget one and 1 more select pods that count as Ready")
    assert f"conditionType: {MEMBER_CONDITION}" in check["advice"]
    assert check["advice"].endswith("docs/operate/disruption-budgets.md")


def test_doctor_does_not_ask_where_the_template_has_the_gate(asked: Server, run: Run) -> None:
    mine = body()
    mine["spec"]["template"] = {"spec": {"containers": [TRAIN], "readinessGates": GATE}}
    asked.put(mine)
    assert said(run) == []
    assert not [path for _, path, _ in asked.asked if path.startswith(BUDGETS)]


@pytest.mark.parametrize("code", [403, 404, 500])
def test_nothing_is_said_of_budgets_that_cannot_be_listed(asked: Server, run: Run, code: int) -> None:
    asked.answers[BUDGETS] = refusal(code, "Forbidden", 'User "jane" cannot list resource')
    assert said(run) == []
