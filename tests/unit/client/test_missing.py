"""Where one pod's log, or all pods, cannot be read: what is known is told, and what is missing is named."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from elasticjob_client import Jobs
from elasticjob_client.cli.run_follow import follow
from tests.unit.client.conftest import body, container, core_event
from tests.unit.client.made import ago, conditions
from tests.unit.client.server import EVENTS, PODS, Server, refusal
from tests.unit.client.test_watching import changed

Run = Callable[..., Result]
GONE = refusal(404, "NotFound", 'pods "mnist-1-0" not found', "mnist-1-0")
UNREACHABLE = refusal(
    500, "InternalError", 'Get "https://10.0.0.9:10250/containerLogs": dial tcp 10.0.0.9:10250: i/o timeout'
)
NO_RIGHT = refusal(403, "Forbidden", 'User "jane" cannot list resource "pods"')
REASONS = {"a node that is lost": UNREACHABLE, "no right": NO_RIGHT}


@pytest.mark.parametrize("reason", REASONS)
def test_why_tells_what_the_status_says(server: Server, run: Run, reason: str) -> None:
    server.answers[f"{PODS}/mnist-1-0/log"] = REASONS[reason]
    result = run("why", "mnist")
    assert (result.exit_code, result.exception) == (0, None)
    assert "First to fail: mnist-1-0 (group rank 1) on node b: exit code 137, SIGKILL." in result.stdout
    assert "not shown: the log of mnist-1-0: " in result.stderr
    assert REASONS[reason][1]["message"] in result.stderr
    (missing,) = json.loads(run("why", "mnist", "-o", "json").stdout)["missing"]
    assert missing.startswith("the log of mnist-1-0: ")


@pytest.mark.parametrize("name", ["why", "status", "report", "top", "events"])
def test_without_the_pods(server: Server, run: Run, name: str, tmp_path: object) -> None:
    server.answers[PODS] = NO_RIGHT
    words = {
        "report": ("report", "mnist", "-f", f"{tmp_path}/report.html"),
        "top": ("top", "mnist", "-o", "json"),
        "events": ("events", "mnist", "--pods"),
    }.get(name, (name, "mnist"))
    result = run(*words)
    assert (result.exit_code, result.exception) == (0, None)
    assert result.stdout
    assert "the log with it" not in result.stdout, "nobody knows"
    assert "not shown: the pods of mnist: " in result.stderr
    assert 'User "jane" cannot list' in result.stderr


def started(server: Server) -> None:
    running = {"running": {"startedAt": ago(900)}}
    for pod in server.answers[PODS]["items"][::2]:
        pod["status"]["containerStatuses"] = [container(running)]
    server.answers[f"{PODS}/mnist-0-0/log"] = f"{ago(9)} zero\n"
    server.answers[f"{PODS}/mnist-1-1/log"] = f"{ago(8)} one\n"


@pytest.mark.parametrize("refused", [GONE, UNREACHABLE], ids=["gone", "unreachable"])
def test_logs_of_the_other_pods_are_shown(server: Server, run: Run, refused: object) -> None:
    started(server)
    server.answers[f"{PODS}/mnist-1-0/log"] = refused
    result = run("logs", "mnist", "--all")
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines() == ["[0 mnist-0-0] zero", "[1 mnist-1-1] one"]
    assert "cannot read the log of pod mnist-1-0: " in result.stderr
    assert json.loads(run("logs", "mnist", "--rank", "1", "-o", "json").stdout)["text"] == "one"


def test_where_no_log_can_be_read_that_is_an_error(server: Server, run: Run) -> None:
    started(server)
    for pod in ("mnist-0-0", "mnist-1-0", "mnist-1-1"):
        server.answers[f"{PODS}/{pod}/log"] = UNREACHABLE
    result = run("logs", "mnist", "--all")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot read the log of pod mnist-" in str(result.exception)


@pytest.mark.parametrize("reason", REASONS)
def test_doctor_goes_on(server: Server, run: Run, reason: str) -> None:
    found = body()
    found["status"].update(participants=[], roundHistory=[], currentRound={"number": 0})
    server.put(found)
    server.answers[f"{PODS}/mnist-1-0/log"] = REASONS[reason]
    checks = json.loads(run("doctor", "mnist", "-o", "json").stdout)["items"]
    (logs,) = [check for check in checks if check["subject"] == "logs"]
    assert (logs["result"], REASONS[reason][1]["message"] in logs["found"]) == ("unknown", True)


def test_run_names_the_log_that_it_cannot_show(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    end = conditions("Failed", "a worker failed", ("ApplicationRestartsExhausted", "exit code 1"))
    server.put(changed(1, "Failed", conditions=end))
    started(server)
    server.answers[f"{PODS}/mnist-1-0/log"] = UNREACHABLE
    with Jobs() as jobs:
        assert follow(jobs, "mnist")
    said = capsys.readouterr().err
    assert "not shown: the log of mnist-1-0: " in said
    assert "`elasticjob why mnist` tells more" in said


def test_events_of_a_deleted_namesake_are_left_out(server: Server, run: Run) -> None:
    old, own = core_event("Old", "of another time", 9000), core_event("Own", "of this job", 10)
    pod = core_event("OldPod", "of another pod", 9000, "Pod", "mnist-0-0")
    old["involvedObject"]["uid"], own["involvedObject"]["uid"] = "another", "u"
    pod["involvedObject"]["uid"] = "another"
    server.answers[EVENTS]["items"] = [old, own, pod]
    for words in (("events", "mnist"), ("events", "mnist", "--pods")):
        found = json.loads(run(*words, "-o", "json").stdout)["items"]
        assert [one["reason"] for one in found] == ["Own"]


def test_lines_of_a_rank_have_that_rank(server: Server) -> None:
    """Also of a pod that has it no more, and of one that has not joined yet."""
    started(server)
    server.answers[f"{PODS}/mnist-1-0/log"] = f"{ago(200)} before\n"
    with Jobs() as jobs:
        assert [(line.text, line.rank) for line in jobs.logs("mnist", 1)] == [("before", 1), ("one", 1)]
    job = changed(1, "Complete", terminalState="Complete", participants=[])
    server.put(job)
    with Jobs() as jobs:
        found = [(line.text, line.rank) for line in jobs.logs("mnist", 0, follow=True)]
    assert found == [("zero", 0)]
