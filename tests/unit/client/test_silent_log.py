"""What is said where a log has no lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from devcluster.wait import wait_for
from elasticjob_client import Jobs
from elasticjob_client.cli import silent_log
from elasticjob_client.cli.silent_log import Silence
from tests.unit.client.made import conditions
from tests.unit.client.server import PODS, Server
from tests.unit.client.test_watching import changed

Run = Callable[..., Result]


def without_status() -> dict[str, Any]:
    found = changed(1)
    del found["status"]
    return found


def test_while_no_line_comes_the_state_is_told_and_again_when_it_changes(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(silent_log, "SECONDS", 0.02)
    said: list[str] = []

    def has(text: str) -> bool:
        said.append(capsys.readouterr().err)
        return text in "".join(said)

    server.put(without_status())
    done = threading.Event()

    def lines() -> Iterator[str]:
        done.wait(60)
        yield "last"

    with Jobs() as jobs, Silence(jobs, "mnist") as looks:
        threading.Thread(target=lambda: list(looks.over(lines()))).start()
        wait_for(
            lambda: has("no operator has looked at mnist: `elasticjob doctor` tells why\n"), 60, "it is said"
        )
        server.put(changed(2, conditions=conditions("WaitingForPods", "1 of 2 pods")))
        wait_for(lambda: has("mnist: WaitingForPods: 1 of 2 pods\n"), 60, "it is said")
        server.put(changed(3))
        asked = len(server.asked)
        wait_for(lambda: len(server.asked) > asked + 3, 60, "it is said")
        done.set()
    assert "".join(said).count("\n") == 2, "each state once, and nothing of a job that trains"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (without_status(), "no operator has looked at mnist: `elasticjob doctor` tells why"),
        (
            changed(1, conditions=conditions("WaitingForPods", "mnist-0: cannot be created: denied")),
            "mnist: WaitingForPods: mnist-0: cannot be created: denied",
        ),
        (changed(1), "`elasticjob status mnist` shows which pods have started"),
    ],
)
def test_logs_without_lines_say_why(server: Server, run: Run, found: dict[str, Any], said: str) -> None:
    server.put(found)
    server.answers[PODS]["items"] = []
    found.get("status", {})["participants"] = []
    result = run("logs", "mnist")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"no lines: {said}\n")


def test_a_rank_that_no_round_can_have(server: Server, run: Run) -> None:
    server.put(without_status())
    assert "mnist has no group rank 99: expected 0 to 1" in str(
        run("logs", "mnist", "--rank", "99").exception
    )
    assert run("logs", "mnist", "--rank", "1").exception is None


def test_ctrl_c_in_logs(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del server

    def interrupted(*_: object, **__: object) -> Iterator[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "logs", interrupted)
    result = run("logs", "mnist", "-f")
    assert (result.exit_code, "Aborted" in result.output) == (130, False)
