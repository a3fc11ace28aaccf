"""The loss of the operator that leads: what is deleted, what is waited for, what is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec
import pytest
from click.testing import Result

from tests.unit.client.made import after_a_loss, conditions
from tests.unit.client.server import JOBS, Server, refusal

Run = Callable[..., Result]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/elasticjob-system/leases"
POD = "/api/v1/namespaces/elasticjob-system/pods/operator-1"


def leases(holder: str) -> dict[str, Any]:
    renewed = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    item = {"metadata": {"name": "elasticjob"}, "spec": {"holderIdentity": holder, "renewTime": renewed}}
    return {"kind": "LeaseList", "metadata": {}, "items": [item]}


@pytest.fixture
def led(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """operator-1 leads; operator-2 does after the first second that is waited, in which training goes on."""
    server.answers[LEASES] = leases("operator-1_a")
    server.answers[f"DELETE {POD}"] = {"kind": "Status", "status": "Success"}

    def pass_on(_: float) -> None:
        server.answers[LEASES] = leases("operator-2_b")
        server.answers[f"{JOBS}/mnist"]["status"]["progress"]["step"] += 5

    monkeypatch.setattr(time, "sleep", pass_on)
    return server


def test_the_job_goes_on_while_the_next_one_leads(led: Server, run: Run) -> None:
    result = run("drill", "mnist", "--kill", "operator", "--yes")
    assert result.exit_code == 0, result.exception
    first, *others = result.stdout.splitlines()
    assert first.startswith("operator-2 led after ")
    assert others == [
        "Round 2 went on: nothing was restarted, and nothing is charged.",
        "Steps went on from 2000 to 2005.",
    ]
    (deleted,) = [path for verb, path, _ in led.asked if verb == "DELETE"]
    assert deleted == f"{POD}?gracePeriodSeconds=0"


def test_it_asks_first(led: Server, run: Run) -> None:
    result = run("drill", "mnist", "--kill", "operator", answer="n\n")
    assert result.exit_code == 1
    assert "kill elasticjob-system/operator-1, the operator of all jobs?" in result.stderr
    assert not [path for verb, path, _ in led.asked if verb == "DELETE"]


def test_a_round_that_ends_meanwhile_is_named(led: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def round_ends(_: float) -> None:
        led.answers[LEASES] = leases("operator-2_b")
        led.answers[f"{JOBS}/mnist"]["status"]["currentRound"]["number"] = 3

    monkeypatch.setattr(time, "sleep", round_ends)
    found = json.loads(run("drill", "mnist", "--kill", "operator", "--yes", "-o", "json").stdout)
    assert (found["roundWentOn"], found["leader"], found["killed"]) == (False, "operator-2", ["operator-1"])
    assert found["sentences"][1] == "Meanwhile round 2 ended: `elasticjob why mnist --round 2` tells why."


def test_without_a_leader_or_a_pod_nothing_is_killed(server: Server, run: Run) -> None:
    server.answers[LEASES] = {"kind": "LeaseList", "metadata": {}, "items": []}
    result = run("drill", "mnist", "--kill", "operator", "--yes")
    assert "no operator leads in namespace elasticjob-system" in str(result.exception)
    server.answers[LEASES] = leases("laptop_c")
    server.answers["/api/v1/namespaces/elasticjob-system/pods/laptop"] = refusal(
        404, "NotFound", "no", "laptop"
    )
    result = run("drill", "mnist", "--kill", "operator", "--yes")
    assert "cannot delete pod elasticjob-system/laptop (the operator that leads)" in str(result.exception)


def test_a_job_that_does_not_train_shows_nothing(led: Server, run: Run) -> None:
    led.put(msgspec.to_builtins(after_a_loss(conditions=conditions("Suspended", ""))))
    result = run("drill", "mnist", "--kill", "operator", "--yes")
    assert "mnist does not train (Suspended)" in str(result.exception)
