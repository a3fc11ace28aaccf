"""Every command where something is missing: the error names what was found, and says what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from elasticjob_client.cli.main import _COMMANDS
from elasticjob_client.errors import (
    ClientError,
    Forbidden,
    NoAccess,
    NotFound,
    NotInstalled,
    Unreadable,
)
from tests.unit.client.server import JOBS, NAMESPACE, Server, kubeconfig, refusal

Run = Callable[..., Result]
COMMANDS = {
    "run": ("run", __file__, "--image", "i", "--name", "mnist"),
    "list": ("list",),
    "status": ("status", "mnist"),
    "top": ("top", "-o", "json"),
    "why": ("why", "mnist"),
    "logs": ("logs", "mnist"),
    "events": ("events", "mnist"),
    "exec": ("exec", "mnist", "--", "ls"),
    "stacks": ("stacks", "mnist"),
    "scale": ("scale", "mnist", "3"),
    "suspend": ("suspend", "mnist"),
    "resume": ("resume", "mnist"),
    "delete": ("delete", "mnist", "--yes"),
    "report": ("report", "mnist"),
    "drill": ("drill", "mnist", "--kill", "rank:0", "--yes"),
    "doctor": ("doctor", "mnist"),
}
OF_ONE_JOB = sorted(set(COMMANDS) - {"run", "list", "top"})
NO_JOB = refusal(404, "NotFound", 'elasticjobs.elasticjob.dev "mnist" not found', "mnist")
NO_NAMESPACE = refusal(404, "NotFound", 'namespaces "research" not found', "research")
NO_NAMESPACE[1]["details"]["kind"] = "namespaces"
NO_RIGHT = refusal(403, "Forbidden", 'elasticjobs is forbidden: User "jane" cannot get it', "mnist")


def test_every_command_that_asks_a_cluster_is_walked() -> None:
    assert set(COMMANDS) == set(_COMMANDS) - {"convert", "completion"}


def answered(server: Server, found: Any) -> None:
    """What the server says to each request about ElasticJobs."""
    for path in (JOBS, f"{JOBS}/mnist", f"POST {JOBS}", f"PATCH {JOBS}/mnist", f"DELETE {JOBS}/mnist"):
        server.answers[path] = found


def refused(run: Run, name: str, kind: type[ClientError], *said: str) -> None:
    result = run(*COMMANDS[name])
    assert type(result.exception) is kind, (result.output, result.exception)
    assert (result.exit_code, result.stdout) == (1, "")
    for text in said:
        assert text in str(result.exception)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_the_resource(server: Server, run: Run, name: str) -> None:
    answered(server, (404, None))
    refused(run, name, NotInstalled, "no resource ElasticJob", "Install ElasticJob", "--context")


@pytest.mark.parametrize("name", COMMANDS)
def test_without_the_right(server: Server, run: Run, name: str) -> None:
    answered(server, NO_RIGHT)
    refused(run, name, Forbidden, 'User "jane" cannot get it', "permissions.md", "`elasticjob doctor` lists")


@pytest.mark.parametrize("name", OF_ONE_JOB)
def test_without_the_job(server: Server, run: Run, name: str) -> None:
    answered(server, NO_JOB)
    refused(run, name, NotFound, '"mnist" not found', "research/mnist", "`elasticjob list -A`")
    server.answers[NAMESPACE] = NO_RIGHT
    refused(run, name, NotFound, '"mnist" not found', "`elasticjob list -A`")


@pytest.mark.parametrize("name", COMMANDS)
def test_without_the_namespace(server: Server, run: Run, name: str) -> None:
    server.answers[NAMESPACE] = NO_NAMESPACE
    answered(server, NO_JOB)
    server.answers[f"POST {JOBS}"] = NO_NAMESPACE
    server.answers[JOBS] = {"kind": "List", "metadata": {}, "items": []}
    refused(run, name, NotFound, "namespace", "research", "`kubectl get namespaces`", "--namespace")


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_server(server: Server, run: Run, name: str) -> None:
    server.http.shutdown()
    server.http.server_close()
    result = run(*COMMANDS[name])
    assert isinstance(result.exception, ClientError)
    assert f"the API server at {server.url} does not answer" in str(result.exception)
    assert "--context and --kubeconfig choose another" in str(result.exception)


@pytest.mark.parametrize(
    "answer", ["<html>log in</html>", "[1]", {"items": [{"spec": {"replicas": "many"}}]}]
)
def test_what_answers_is_not_understood(server: Server, run: Run, answer: Any) -> None:
    server.answers[JOBS] = answer
    result = run("list")
    assert isinstance(result.exception, Unreadable), result.exception
    assert "cannot list ElasticJobs of namespace research: " in str(result.exception)


def changed(url: str, what: str) -> Any:
    """A kubeconfig with one thing wrong."""
    login = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    found = kubeconfig(url, "one")
    cluster, user, context = (found[kind][0] for kind in ("clusters", "users", "contexts"))
    match what:
        case "two contexts":
            found["contexts"].append({"name": "two", "context": {"cluster": "one", "user": "one"}})
            found["current-context"] = ""
        case "no name":
            del cluster["name"]
        case "a mapping":
            found["users"] = {"one": {}}
        case "empty context":
            context["context"] = None
        case "no server":
            del cluster["cluster"]["server"]
        case "no scheme":
            cluster["cluster"]["server"] = "10.0.0.1:6443"
        case "no certificate":
            user["user"] = {"client-certificate": "me.crt", "client-key": "me.key"}
        case "bad certificate":
            user["user"] = {"client-certificate-data": "eA==", "client-key-data": "eA=="}
        case "no login program":
            user["user"] = {"exec": {**login, "command": "no-such-program"}}
        case "no credential":
            user["user"] = {"exec": {**login, "command": "echo", "args": ["hello"]}}
        case "empty":
            return None
        case "no YAML":
            return "a: b: c"
        case "no mapping":
            return "text"
    return found


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("two contexts", "no context is current: choose one of one, two with --context"),
        ("no name", "expected clusters as a list of `name` and `cluster`"),
        ("a mapping", "expected users as a list of `name` and `user`"),
        ("empty context", "context 'one' names the cluster ''"),
        ("no server", "the server of cluster 'one' is '': expected https://HOST:PORT"),
        ("no scheme", "is '10.0.0.1:6443': expected https://HOST:PORT"),
        ("no certificate", "me.crt, and there is no such file"),
        ("bad certificate", "a certificate or key in the kubeconfig is not usable"),
        ("no login program", "needs 'no-such-program', which is not there, or not in PATH"),
        ("no credential", "login program gives no credential"),
        ("empty", "the kubeconfig has no contexts"),
        ("no YAML", "is not YAML"),
        ("no mapping", "is not a kubeconfig"),
    ],
)
def test_a_kubeconfig_that_leads_nowhere(
    server: Server, run: Run, tmp_path: Path, what: str, said: str
) -> None:
    found = changed(server.url, what)
    file = tmp_path / "broken"
    file.write_text(found if isinstance(found, str) else yaml.safe_dump(found) if found else "")
    result = run("list", "--kubeconfig", str(file))
    assert isinstance(result.exception, NoAccess | Unreadable), result.exception
    assert said in str(result.exception)
    assert "--kubeconfig and --context choose another cluster" in str(result.exception)


def test_what_is_wrong_with_other_contexts_does_not_matter(server: Server, run: Run, tmp_path: Path) -> None:
    found = kubeconfig(server.url, "one")
    found["clusters"].append({"name": "two", "cluster": None})
    found["contexts"].append({"name": "two", "context": None})
    found["users"].append({"name": "two", "user": {"client-certificate": "nowhere.crt"}})
    file = tmp_path / "half"
    file.write_text(yaml.safe_dump(found))
    assert run("list", "--kubeconfig", str(file)).exit_code == 0


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-o json list", "Flags of a command come after it"),
        ("-n a/b list", "'a/b' cannot be the name of a namespace"),
        ("-n", "Option '-n' requires an argument"),
        ("lst", "No such command 'lst'. Do you mean list?"),
        ("xyz", "No such command 'xyz'. --help shows all."),
        ("status elasticjob/mnist", "do you mean mnist?"),
        ("status Mnist", "'Mnist' cannot be the name of a job"),
        ("list -n a/b", "'a/b' cannot be the name of a namespace"),
        ("list -n team.a", "'team.a' cannot be the name of a namespace: expected 1 to 63"),
        ("status a..b", "'a..b' cannot be the name of a job: expected 1 to 253"),
        ("doctor --operator-namespace a/b", "'a/b' cannot be the name of a namespace"),
        ("scale mnist 0", "0 is not in the range x>=1"),
        ("scale mnist -1", "-1 is no number of pods: expected 1 or more"),
        ("scale mnist 4 --no", "No such option '--no'"),
        ("scale mnist", "Missing argument 'REPLICAS'"),
        ("logs mnist --rank 0 --all", "--rank and --all exclude each other"),
    ],
)
def test_a_wrong_command_line(run: Run, words: str, said: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_doctor_goes_on_where_something_is_missing(server: Server, run: Run) -> None:
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers[f"POST {reviews}"] = {"metadata": {}, "spec": {}, "status": {"allowed": False}}
    for answer in ((404, None), NO_RIGHT):
        answered(server, answer)
        with contextlib.suppress(SystemExit):
            result = run("doctor")
        assert result.exit_code == 1
        assert "FAILED  read logs" in result.stdout, result.exception
