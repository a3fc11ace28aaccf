"""The options of ``run``, and what it says of wrong values."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from elasticjob_client import Jobs, Rejected
from elasticjob_client.cli import run_follow as following
from elasticjob_client.resource import ElasticJob
from tests.unit.client.conftest import body
from tests.unit.client.server import JOBS, Server, refusal
from tests.unit.client.test_watching import created

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a script, one in a directory, and one elsewhere."""
    (tmp_path / "ok.py").write_text("print()")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.py").write_text("print()")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ok.py --image i --env FOO", "'FOO': expected NAME=VALUE"),
        ("ok.py --image i --env =a", "'=a': expected NAME=VALUE"),
        ("ok.py --image i --volume foo:bar", "'foo:bar': expected CLAIM:/path"),
        ("ok.py --image i --volume /x:/y", "expected CLAIM:/path; '/x' cannot name a PersistentVolumeClaim"),
        ("ok.py --image i --volume a..b:/y", "'a..b' cannot name a PersistentVolumeClaim"),
        ("ok.py --image i --volume a:/x --volume b:/x/", "two claims for /x, a and b"),
        ("ok.py --image i --volume a:/x:rw", "'a:/x:rw': expected CLAIM:/path, or CLAIM:/path:ro to read"),
        ("ok.py --image i --volume a:/x:ro:ro", "expected CLAIM:/path, or CLAIM:/path:ro to read only"),
        ("ok.py --image i --volume a:/x:ro --volume b:/x", "two claims for /x, a and b"),
        ("ok.py --image=", "'' names no image: expected one such as"),
        ("ok.py --image i --memory=-5Gi", "'-5Gi' is no amount: expected one such as 16Gi"),
        ("ok.py --image i --cpu four", "'four' is no amount: expected one such as 4"),
        ("ok.py --image i --in-image --code d", "--in-image uploads nothing, and --code uploads a directory"),
        ("ok.py --image i --lr 0.1", "The script's own arguments come after --"),
        (
            "ok.py --image i --name My_Job",
            "'My_Job' cannot be the name of a new job: expected 1 to 45 lower-case letters, digits or '-'",
        ),
        (
            "d --image i",
            "'d' is a directory: name the script in it, such as `elasticjob run d/train.py --code d`",
        ),
        ("no.py --image i", "there is no file 'no.py': expected a script"),
        ("ok.py --image i --code d", "'ok.py' is not in 'd': --code must be a directory that contains it"),
    ],
)
def test_a_command_line_that_cannot_be_meant(server: Server, run: Run, words: str, said: str) -> None:
    result = run("run", *words.split())
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
    assert not server.asked


def test_no_script(run: Run, server: Server) -> None:
    result = run("run", "", "--image", "i")
    assert result.exit_code == 2
    assert "'' is no file: expected the path of a script" in result.stderr
    assert not server.asked


def test_volumes_and_amounts_that_are_right(run: Run, folder: Path, server: Server) -> None:
    del server
    words = "--image i --volume a:/x --volume a:/y --memory 1.5Gi --cpu 500m --env A=b=c --dry-run client"
    result = run("run", str(folder / "ok.py"), *words.split())
    assert result.exit_code == 0, result.output
    assert "value: b=c" in result.stdout


def test_a_volume_that_is_only_read(run: Run, folder: Path, server: Server) -> None:
    del server
    words = "--image i --in-image --volume a:/x/:ro --volume b:/y --dry-run client -o json"
    result = run("run", str(folder / "ok.py"), *words.split())
    pod = json.loads(result.stdout)["spec"]["template"]["spec"]
    mounts = {one["mountPath"]: one.get("readOnly") for one in pod["containers"][0]["volumeMounts"]}
    assert (mounts["/x"], mounts["/y"]) == (True, None)
    claims = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"claimName": "a"}, {"claimName": "b"}]


def test_a_name_that_is_taken(server: Server, run: Run, tmp_path: Path) -> None:
    words = created(server, tmp_path)
    server.answers[f"POST {JOBS}"] = refusal(
        409, "AlreadyExists", 'elasticjobs "mnist" already exists', "mnist"
    )
    result = run(*words)
    assert isinstance(result.exception, Rejected)
    assert str(result.exception).endswith(
        "already exists. Choose another --name, or delete that job: `elasticjob delete mnist`"
    )


def interrupted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Ctrl-C at the beginning of a creation."""
    launch = Jobs.launch

    def slow(jobs: Jobs, job: ElasticJob, code: dict[str, Any] | None = None) -> ElasticJob:
        signal.raise_signal(signal.SIGINT)
        return launch(jobs, job, code)

    monkeypatch.setattr(Jobs, "launch", slow)


def test_ctrl_c_while_a_job_cannot_be_created(
    server: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = created(server, tmp_path)
    server.answers[f"POST {JOBS}"] = refusal(422, "Invalid", "no such labels")
    interrupted_early(monkeypatch)
    result = run(*words)
    assert result.exit_code == 130, result.exception
    assert "cannot create ElasticJob research/mnist: no such labels" in result.stderr
    assert "goes on" not in result.stderr


def test_ctrl_c_while_the_job_is_created(
    server: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = created(server, tmp_path)
    interrupted_early(monkeypatch)
    result = run(*words)
    assert result.exit_code == 130, result.exception
    assert "creating mnist; Ctrl-C again does not wait for it" in result.stderr
    assert "mnist goes on: `elasticjob logs mnist -f`, `elasticjob delete mnist`" in result.stderr
    assert "PATCH" in [method for method, _, _ in server.asked], "it is there as a whole"


def test_run_says_that_no_operator_looks(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = body()
    del found["status"]
    server.put(found)
    said = []

    def watch(*_: object) -> Any:
        yield ElasticJob.from_dict(found)
        for _try in range(200):
            signal.sigtimedwait([], 0.05)
            said.append(capsys.readouterr().err)
            if any(said):
                raise KeyboardInterrupt

    monkeypatch.setattr(following, "UNSEEN_SECONDS", 0.05)
    monkeypatch.setattr(Jobs, "watch", watch)
    with Jobs() as jobs:
        assert following.follow(jobs, "mnist") == 130
    assert "no operator has looked at mnist: `elasticjob doctor` tells why\n" in said


def test_what_is_not_uploaded_is_named(server: Server, run: Run, folder: Path) -> None:
    (folder / "d" / "lib").mkdir()
    (folder / "d" / "again").symlink_to("lib")
    words = ("run", "d/train.py", "--code", "d", "--image", "i", "--dry-run", "client")
    assert run(*words).stderr == "not uploaded: d/again: a link to a directory\n"
    (folder / "d" / "out.py").symlink_to(folder / "ok.py")
    assert "d/out.py -> " in str(run(*words).exception)
    assert not server.asked
