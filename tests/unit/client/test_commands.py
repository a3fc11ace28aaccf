"""The commands, from the command line to requests and back, against a server of a few answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from elasticjob_client import Jobs
from elasticjob_client.cli.logs import exec_words
from elasticjob_client.cli.main import complete, main
from elasticjob_client.errors import (
    ClientError,
    Forbidden,
    NoAccess,
    NoServer,
    NotFound,
    NotInstalled,
    Rejected,
)
from tests.unit.client.conftest import RUNNING, body, container
from tests.unit.client.made import NOW, ago
from tests.unit.client.server import JOBS, PODS, Server, refusal

Run = Callable[..., Result]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "use" / "command-line.md"

pytestmark = pytest.mark.usefixtures("server")


def lines(result: Result) -> list[str]:
    """What it printed; what goes into a pipe is not filled up with blanks to some width."""
    assert result.exit_code == 0, (result.output, result.exception)
    assert max(map(len, result.stdout.splitlines()), default=0) < 200
    return [line.rstrip() for line in result.stdout.splitlines()]


def test_list(run: Run) -> None:
    head, row = lines(run("list"))
    assert head.split() == ["NAME", "STATE", "MEMBERS", "ROUND", "RESTARTS", "STEP", "GOODPUT", "AGE"]
    assert row.split()[:7] == ["mnist", "Training", "2/2", "2", "1", "2000", "97"]
    (item,) = json.loads(run("list", "-o", "json").stdout)["items"]
    assert (item["name"], item["goodputPercent"]) == ("mnist", 97)


@pytest.mark.parametrize(
    "words",
    [
        "-n other list",
        "-nother list",
        "--namespace=other list",
        "--context test -n other list",
        "-n wrong list -n other",
        "list -n other",
    ],
)
def test_flags_of_kubectl_stand_before_or_after_the_command(server: Server, run: Run, words: str) -> None:
    jobs = JOBS.replace("/research/", "/other/")
    server.answers[jobs] = server.answers[JOBS]
    assert lines(run(*words.split()))[1].startswith("mnist ")
    asked = [path.partition("?")[0] for _, path, _ in server.asked]
    assert [path for path in asked if "/leases" not in path] == [jobs]


def test_a_kubeconfig_before_the_command(
    server: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    assert run("--kubeconfig", str(server.kubeconfig), "status", "mnist").exit_code == 0
    manifest = Path(__file__).parent / "kubeflow" / "pytorchjob-master.yaml"
    assert run("-n", "other", "convert", str(manifest)).exit_code == 0, "it has no use for them"


def test_a_namespace_without_jobs_says_so(server: Server, run: Run) -> None:
    server.answers[JOBS] = {"kind": "List", "metadata": {}, "items": []}
    result = run("list")
    assert (result.stdout, result.stderr) == ("", "no ElasticJobs in namespace research\n")


def test_status(run: Run) -> None:
    text = "\n".join(lines(run("status", "mnist")))
    assert text.startswith("mnist is Training: round 2 with 2 members, leader mnist-0-0\n")
    assert "\nround 2 (Active), 2 of 2 members, 16 processes, formed for PodLost\njob active for " in text
    assert "; 1 restart\nstep 2000; 412 ms per step;" in text
    assert "step 2000; 412 ms per step; goodput 97 %; 75s lost (Started 70 s, PodLost 4.1 s)" in text
    assert "mnist-1-1" in text
    assert "round 1 ended: mnist-1-0 (group rank 1) was lost" in text
    assert "\nworkers of round 2: 15 started warm, 1 cold (no warm interpreter was ready)\n" in text
    found = json.loads(run("status", "mnist", "-o", "json").stdout)
    assert [pod["rank"] for pod in found["pods"]] == [0, 1]
    assert found["rounds"][1]["end"]["cause"] == "PodLost"


def test_the_document_shows_what_is_printed(
    server: Server, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, of the same job at the same time."""
    monkeypatch.setattr("elasticjob_client.cli.reading.now", lambda: NOW)
    del server.answers[f"{PODS}/mnist-1-0/log"]
    shown = PAGE.read_text().partition("## What it looks like")[2].partition("```console\n")[2]
    printed = [
        line
        for command in ("status", "why")
        for line in [f"$ elasticjob {command} mnist", *lines(run(command, "mnist"))]
    ]
    assert printed == shown.partition("```")[0].splitlines()


def test_why_reads_the_log_of_the_pod_that_failed(server: Server, run: Run) -> None:
    text = "\n".join(lines(run("why", "mnist")))
    assert "First to fail: mnist-1-0 (group rank 1) on node b: exit code 137, SIGKILL." in text
    assert text.endswith("The end of mnist-1-0's log:\n  Traceback\n  boom")
    asked = next(path for _, path, _ in server.asked if path.startswith(f"{PODS}/mnist-1-0/log"))
    assert "container=train" in asked
    assert "tailLines=200" in asked


def test_why_of_a_round_that_the_status_does_not_have(run: Run) -> None:
    result = run("why", "mnist", "--round", "9")
    assert isinstance(result.exception, ClientError)
    assert "round 9 is not in the status of mnist" in str(result.exception)


def test_events_are_the_jobs_own_oldest_first(run: Run) -> None:
    _, *rows = lines(run("events", "mnist"))
    assert [row.split()[1] for row in rows] == ["RoundBroken", "RoundPublished"]
    _, *rows = lines(run("events", "mnist", "--pods"))
    assert next(row.split()[1:3] for row in rows) == ["Scheduled", "pod/mnist-0-0"]


@pytest.mark.parametrize(
    ("words", "spec", "said"),
    [
        (["scale", "mnist", "4"], {"replicas": 4}, "mnist: 2 to 2 replicas\n"),
        (["suspend", "mnist"], {"suspend": True}, "mnist: suspended\n"),
        (["resume", "mnist"], {"suspend": False}, "mnist: resumed\n"),
    ],
)
def test_changes(server: Server, run: Run, words: list[str], spec: dict[str, object], said: str) -> None:
    result = run(*words)
    assert result.stdout == said
    (sent,) = [sent for method, _, sent in server.asked if method == "PATCH"]
    assert sent == {"spec": spec}


def test_a_job_that_has_ended_is_not_changed(server: Server, run: Run) -> None:
    ended = body()
    ended["status"]["terminalState"] = "Failed"
    server.put(ended)
    result = run("scale", "mnist", "4")
    assert isinstance(result.exception, Rejected)
    assert "it is Failed, which is final" in str(result.exception)
    assert not [method for method, _, _ in server.asked if method == "PATCH"]


def test_delete_asks_about_a_job_that_has_not_ended(server: Server, run: Run) -> None:
    refused = run("delete", "mnist", answer="n\n")
    assert refused.exit_code == 1
    assert "mnist has not ended (Training); delete it?" in refused.output
    assert not [method for method, _, _ in server.asked if method == "DELETE"]
    unasked = run("delete", "mnist").exception
    assert str(unasked) == "there is no terminal to answer on: --yes goes on without the question"
    assert "Aborted!" in run("delete", "mnist", answer="n\n").stderr
    assert run("delete", "mnist", "--yes").stdout == "mnist: deleted\n"
    assert [path for method, path, _ in server.asked if method == "DELETE"] == [f"{JOBS}/mnist"]


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            refusal(404, "NotFound", 'elasticjobs "mnist" not found', "mnist"),
            NotFound,
            "`elasticjob list` shows",
        ),
        ((404, None), NotInstalled, "the cluster has no resource ElasticJob. Install"),
        (refusal(403, "Forbidden", "jane cannot get", "mnist"), Forbidden, "administrators of the cluster"),
        (refusal(401, "Unauthorized", "Unauthorized"), NoAccess, "Log in again"),
        (refusal(500, "InternalError", "etcd is away"), NoServer, "answers 500: etcd is away"),
    ],
)
def test_refusals_say_what_to_do(server: Server, run: Run, answer: object, kind: type, text: str) -> None:
    server.answers[f"{JOBS}/mnist"] = answer
    result = run("status", "mnist")
    assert type(result.exception) is kind
    assert str(result.exception).startswith("cannot read ElasticJob research/mnist: ")
    assert text in str(result.exception)


def test_a_server_that_is_not_there(server: Server, run: Run) -> None:
    server.http.shutdown()
    server.http.server_close()
    result = run("list")
    assert type(result.exception) is NoServer
    assert f"the API server at {server.url} does not answer" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["stat"], ["status\tShow a job's pods, rounds and restarts", ":4"]),
        (["status", ""], ["mnist", ":4"]),
        (["scale", "mn"], ["mnist", ":4"]),
        (["logs", "mnist", "--si"], ["--since-failure\tFrom 30 s before the last failure", ":4"]),
        (["--kubeconfig=nowhere", "status", ""], [":4"]),
        (["--context", "test", "-n", "research", "status", "m"], ["mnist", ":4"]),
        (["-n", "other", "status", "m"], [":4"]),
        (["-n", "other", "status", "-n", "research", "m"], ["mnist", ":4"]),
        (["-n", "x", "eve"], ["events\tList a job's Events", ":4"]),
        (["-n", ""], [":4"]),
        (["--names"], ["--namespace\tNamespace", ":4"]),
        (["run", ""], [":0"]),
        (["report", "mnist", "-o", ""], ["html", "json", ":0"]),
    ],
)
def test_kubectl_completes_its_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], offered: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-ej", *words])
    complete()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(offered), lines
    assert all(line.startswith(start) for line, start in zip(lines, offered, strict=True)), lines


def test_completion_knows_the_jobs(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", "elasticjob status m")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_ELASTICJOB_COMPLETE", "bash_complete")
    monkeypatch.setattr("sys.argv", ["elasticjob"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == "plain,mnist\n"
    assert "_ELASTICJOB_COMPLETE=bash_complete" in run("completion", "bash").stdout


def test_errors_go_to_stderr_with_code_1(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/kubectl-ej", "status", "cifar"])
    server.answers[f"{JOBS}/cifar"] = refusal(404, "NotFound", 'elasticjobs "cifar" not found', "cifar")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[0][:7]) == ("", "error: ")


def test_logs_of_a_rank_are_those_of_its_pods(server: Server, run: Run) -> None:
    started = {"running": {"startedAt": "2026-05-04T11:58:00Z"}}
    server.answers[PODS]["items"][2]["status"]["containerStatuses"] = [container(started)]
    server.answers[f"{PODS}/mnist-1-0/log"] = "2026-05-04T11:57:00Z old\n"
    server.answers[f"{PODS}/mnist-1-1/log"] = "2026-05-04T11:58:03.5Z new\n"
    assert lines(run("logs", "mnist", "--rank", "1")) == ["old", "new"]
    assert lines(run("logs", "mnist", "--all")) == ["[- mnist-1-0] old", "[1 mnist-1-1] new"]
    assert lines(run("logs", "mnist", "--all", "--round", "2")) == ["[1 mnist-1-1] new"]
    (line,) = lines(run("logs", "mnist", "--all", "--round", "2", "-o", "json"))
    assert json.loads(line)["rank"] == 1
    assert "no group rank 7: expected 0 to 1" in str(run("logs", "mnist", "--rank", "7").exception)


def test_logs_of_a_round_say_in_which_file_its_output_is(server: Server, run: Run) -> None:
    """With --redirects and --log-dir: the handler names the file in each round, shortly after its start."""
    said = "the workers' output goes into files, such as /logs/{}/attempt_0/0/stderr.log. torch removes"
    server.answers[PODS]["items"][0]["status"]["containerStatuses"] = [RUNNING]
    server.answers[f"{PODS}/mnist-0-0/log"] = "".join(
        f"{ago(seconds)} {said.format(number)}\n" for number, seconds in ((1, 2395), (2, 117.5))
    )
    for number in (1, 2):
        assert lines(run("logs", "mnist", "--round", str(number))) == [said.format(number)]


def test_logs_without_times_are_one_pod_after_the_other(server: Server, run: Run) -> None:
    started = {"running": {"startedAt": "2026-05-04T11:58:00Z"}}
    server.answers[PODS]["items"][2]["status"]["containerStatuses"] = [container(started)]
    server.answers[f"{PODS}/mnist-1-1/log"] = "new\n"
    server.no_times = True
    assert lines(run("logs", "mnist", "--rank", "1")) == ["Traceback", "boom", "new"]
    assert isinstance(run("logs", "mnist", "--all", "--round", "2").exception, Rejected)


def test_run_shows_what_it_would_create(server: Server, run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    asked = ("run", str(script), "--image", "i", "--name", "new", "--replicas", "2", "--dry-run", "client")
    made = run(*asked, "-o", "yaml", "--", "--lr", "0.1")
    code, body = yaml.safe_load_all("\n".join(lines(made)))
    assert code["data"] == {"train.py": "print()"}
    assert body["spec"]["template"]["spec"]["containers"][0]["command"][-2:] == ["--lr", "0.1"]
    assert server.asked == []
    result = run("run", str(script), "--image", "i", "--env", "A")
    assert result.exit_code == 2
    assert "expected NAME=VALUE" in result.output


def test_a_manifest_is_printed_without_a_kubeconfig(
    server: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    script = tmp_path / "train.py"
    script.write_text("print()")
    asked = ("run", str(script), "--image", "i", "--name", "new", "--dry-run", "client", "-o", "yaml")
    for words, place in [(asked, {}), ((*asked, "-n", "other"), {"namespace": "other"})]:
        code, job = yaml.safe_load_all("\n".join(lines(run(*words))))
        assert job["metadata"] == {"name": "new", **place}
        assert code["metadata"].get("namespace") == job["metadata"].get("namespace")
    assert isinstance(run(*asked, "--dry-run", "server").exception, NoAccess)
    assert server.asked == []


def test_run_creates_the_job_and_hands_it_the_code(server: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    server.answers[f"POST {JOBS}"] = body()
    maps = "/api/v1/namespaces/research/configmaps"
    server.answers[f"POST {maps}"] = server.answers[f"PATCH {maps}/mnist-code"] = {
        "metadata": {"name": "mnist-code"}
    }
    result = run("run", str(tmp_path / "train.py"), "--image", "i", "--name", "mnist", "--detach")
    assert result.stderr == "created elasticjob/mnist in namespace research\n"
    writes = [
        (method, path.partition("?")[0].rpartition("/")[2], "dryRun" in path)
        for method, path, _ in server.asked
    ]
    assert writes == [
        ("POST", "elasticjobs", True),
        ("POST", "configmaps", False),
        ("POST", "elasticjobs", False),
        ("PATCH", "mnist-code", False),
    ]
    (owner,) = server.asked[-1][2]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ElasticJob", "u")


def test_run_does_not_replace_a_config_map_of_another_owner(server: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    server.answers[f"POST {JOBS}"] = body()
    maps = "/api/v1/namespaces/research/configmaps"
    server.answers[f"POST {maps}"] = refusal(409, "AlreadyExists", "already exists", "mnist-code")
    server.answers[f"{maps}/mnist-code"] = {"metadata": {"name": "mnist-code", "labels": {}}}
    result = run("run", str(tmp_path / "train.py"), "--image", "i", "--name", "mnist", "--detach")
    assert isinstance(result.exception, Rejected)
    assert not [method for method, _, _ in server.asked if method == "PUT"]


def test_doctor_says_what_is_missing(server: Server, run: Run) -> None:
    for kind in (
        "coordination.k8s.io/v1/namespaces/elasticjob-system/leases",
        "apps/v1/namespaces/elasticjob-system/deployments",
    ):
        server.answers[f"/apis/{kind}"] = refusal(403, "Forbidden", "no")
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers[f"POST {reviews}"] = {"metadata": {}, "spec": {}, "status": {"allowed": False}}
    result = run("doctor", "-o", "json")
    assert result.exit_code == 1, result.exception
    checks = json.loads(result.stdout)["items"]
    assert [check["subject"] for check in checks if check["result"] != "ok" and "advice" not in check] == []
    found = {check["subject"]: check["result"] for check in checks}
    assert (found["server"], found["resource"], found["operator"], found["read logs"]) == (
        "ok",
        "ok",
        "unknown",
        "failed",
    )


def test_doctor_does_not_send_its_user_to_doctor(server: Server, run: Run) -> None:
    server.answers[JOBS] = refusal(403, "Forbidden", 'User "jane" cannot list it')
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers[f"POST {reviews}"] = {"metadata": {}, "spec": {}, "status": {"allowed": False}}
    found = {check["subject"]: check for check in json.loads(run("doctor", "-o", "json").stdout)["items"]}
    assert found["jobs"] == {
        "result": "failed",
        "subject": "jobs",
        "found": 'cannot list ElasticJobs of namespace research: User "jane" cannot list it',
        "advice": "the rights that you need are in the last rows",
    }


def test_exec_is_kubectl_with_the_same_cluster(server: Server) -> None:
    with Jobs("research", kubeconfig=str(server.kubeconfig), context="test") as jobs:
        words = exec_words(jobs, "mnist-0-0", "train", terminal=False)
    assert words == [
        "kubectl",
        f"--kubeconfig={server.kubeconfig}",
        "--context=test",
        "--namespace=research",
        "exec",
        "-i",
        "mnist-0-0",
        "-c",
        "train",
    ]


def test_a_job_whose_pods_have_not_started_has_no_lines(server: Server, run: Run) -> None:
    server.answers[PODS]["items"] = []
    server.answers[f"{JOBS}/mnist"]["status"]["participants"] = []
    result = run("logs", "mnist")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no lines: `elasticjob status mnist` shows which pods have started" in result.stderr
