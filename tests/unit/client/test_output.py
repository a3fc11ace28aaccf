"""JSON: every command has it, of the shape that docs/reference/output.md names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

from elasticjob_client.cli.main import _COMMANDS
from elasticjob_client.events import Event
from elasticjob_client.explain.checks import Check
from elasticjob_client.explain.drill import Cost, Takeover
from elasticjob_client.explain.lines import Line
from elasticjob_client.explain.listing import JobRow
from elasticjob_client.explain.report import Report
from elasticjob_client.explain.stacks import Stacks
from elasticjob_client.explain.status import JobStatus
from elasticjob_client.explain.top import TopJob, TopRow
from elasticjob_client.explain.why import Story
from elasticjob_client.resource import ElasticJob
from tests.unit.client.conftest import body, container, core_pod
from tests.unit.client.made import ago
from tests.unit.client.server import JOBS, PODS, Server
from tests.unit.client.test_drill_operator import LEASES, POD, leases
from tests.unit.client.test_stacks import KUBECTL

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "output.md"
SCRIPT = Path(__file__)
OTHERWISE = {"exec", "completion"}
"""Without -o: what they print is not theirs, or is a script."""
CONFIG_MAPS = "/api/v1/namespaces/research/configmaps"

CASES: dict[str, tuple[tuple[str, ...], type | None]] = {
    "list": (("list",), JobRow),
    "status": (("status", "mnist"), JobStatus),
    "top": (("top",), TopRow),
    "top JOB": (("top", "mnist"), TopJob),
    "why": (("why", "mnist"), Story),
    "logs": (("logs", "mnist", "--all"), Line),
    "events": (("events", "mnist"), Event),
    "stacks": (("stacks", "mnist"), Stacks),
    "scale": (("scale", "mnist", "4"), ElasticJob),
    "suspend": (("suspend", "mnist"), ElasticJob),
    "resume": (("resume", "mnist"), ElasticJob),
    "delete": (("delete", "mnist", "--yes"), ElasticJob),
    "run --detach": (("run", str(SCRIPT), "--image", "i", "--name", "mnist", "--detach"), ElasticJob),
    "run --dry-run": (("run", str(SCRIPT), "--image", "i", "--dry-run=client"), None),
    "convert": (("convert", str(SCRIPT.parent / "kubeflow" / "pytorchjob-master.yaml")), ElasticJob),
    "report": (("report", "mnist"), Report),
    "drill --kill rank:R": (("drill", "mnist", "--kill", "rank:1", "--yes"), Cost),
    "drill --kill node:NAME": (("drill", "mnist", "--kill", "node:c", "--yes"), Cost),
    "drill --kill operator": (("drill", "mnist", "--kill", "operator", "--yes"), Takeover),
    "doctor": (("doctor",), Check),
    "doctor JOB": (("doctor", "mnist"), Check),
}


def documented() -> dict[str, tuple[str, list[str]]]:
    """What is printed and its keys, by command."""
    found = {}
    for row in PAGE.read_text().splitlines():
        if row.startswith("| `"):
            commands, what, keys = row.strip("| ").split(" | ")
            found.update(
                {name: (what, re.findall(r"`(\w+)`", keys)) for name in re.findall(r"`([^`]+)`", commands)}
            )
    return found


SHAPES = documented()


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """It lets each command do what it does; after a second that is waited, a killed member is replaced."""
    server.answers[LEASES] = leases("operator-1_a")
    server.answers[f"DELETE {POD}"] = {"kind": "Status", "status": "Success"}
    server.answers["/apis/apps/v1/namespaces/elasticjob-system/deployments"] = {"metadata": {}, "items": []}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers[f"POST {reviews}"] = {"metadata": {}, "spec": {}, "status": {"allowed": True}}
    server.answers[f"POST {JOBS}"] = body()
    for path in (f"POST {CONFIG_MAPS}", f"PATCH {CONFIG_MAPS}/mnist-code"):
        server.answers[path] = {"metadata": {"name": "mnist-code"}}
    started = {"running": {"startedAt": ago(900)}}
    server.answers[PODS]["items"] = [
        core_pod("mnist-0-0", "a", containerStatuses=[container(started)]),
        core_pod("mnist-1-1", "c", containerStatuses=[container(started)]),
    ]
    for pod in ("mnist-0-0", "mnist-1-1"):
        server.answers[f"{PODS}/{pod}/log"] = f"{ago(5)} a line\n"
        server.answers[f"DELETE {PODS}/{pod}"] = {"kind": "Status", "status": "Success"}
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")

    def pass_on(_: float) -> None:
        server.answers[LEASES] = leases("operator-2_b")
        status = server.answers[f"{JOBS}/mnist"]["status"]
        status["progress"]["step"] += 5
        before, number = status["roundHistory"][0], status["currentRound"]["number"]
        killed = [path for verb, path, _ in server.asked if verb == "DELETE" and PODS in path]
        if number == 2:
            status["roundHistory"].insert(0, {**before, "number": 3})
            lost = f"{killed[0].rpartition('/')[2]} was deleted" if killed else "a pod was deleted"
            before["end"] = {"cause": "PodDeleted", "message": lost, "time": ago(1)}
            if killed:
                status["currentRound"]["number"] = 3

    monkeypatch.setattr("time.sleep", pass_on)
    return server


def test_every_command_has_json() -> None:
    assert {name.split()[0] for name in CASES} == set(_COMMANDS) - OTHERWISE
    assert set(SHAPES) == set(CASES)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", CASES)
def test_json_has_the_shape_that_is_documented(run: Callable[..., Result], name: str) -> None:
    words, kind = CASES[name]
    what, keys = SHAPES[name]
    result = run(*words, "-o", "json")
    assert result.exit_code == 0, (result.output, result.exception)
    if what.startswith("JSON Lines"):
        found = [json.loads(line) for line in result.stdout.splitlines()]
    else:
        found = [json.loads(result.stdout)]
        if what.startswith('`{"items"'):
            assert set(found[0]) == {"items"}
            found = found[0]["items"]
    assert found
    if kind is None:
        assert set(found[0]) == set(keys)
        return
    fields = msgspec.structs.fields(kind)
    assert {field.encode_name for field in fields} == set(keys)
    for one in found:
        assert {field.encode_name for field in fields if field.required} <= set(one) <= set(keys)
    assert msgspec.convert(found, list[kind], strict=True)  # type: ignore[valid-type]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", sorted({words[0] for words, _ in CASES.values()} - {"convert"}))
def test_an_error_is_not_on_stdout(run: Callable[..., Result], name: str, server: Server) -> None:
    words = next(words for words, _ in CASES.values() if words[0] == name)
    server.http.shutdown()
    server.http.server_close()
    result = run(*words, "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")


@pytest.mark.usefixtures("cluster")
def test_run_prints_the_job_and_its_log_as_json_lines(run: Callable[..., Result], server: Server) -> None:
    ended = [{"type": "Complete", "status": "True", "reason": "Succeeded", "message": "over"}]
    server.answers[f"{JOBS}/mnist"]["status"].update(terminalState="Complete", conditions=ended)
    asked = ("run", str(SCRIPT), "--image", "i", "--name", "mnist")
    job, *log = [json.loads(line) for line in run(*asked, "-o", "json").stdout.splitlines()]
    assert (job["kind"], [line["text"] for line in log]) == ("ElasticJob", ["a line"])
    assert log[0]["time"] == ago(5)
    refused = run(*asked, "-o", "yaml")
    assert refused.exit_code == 2
    assert "-o yaml needs --dry-run or --detach" in refused.output
