"""Where output cannot go, or not as it is: full disks, narrow encodings, a half-typed name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import terminal
from tests.unit.client.server import PODS, Server

MANIFEST = Path(__file__).parent / "kubeflow" / "pytorchjob-master.yaml"


def elasticjob(
    server: Server, *words: str, stdout: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "elasticjob_client.cli.main", *words],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "NO_COLOR": "1", **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        "list",
        "status mnist -o json",
        "logs mnist --rank 1",
        "report mnist -o json",
        "doctor",
        "completion bash",
        "--help",
        f"convert {MANIFEST}",
    ],
)
def test_a_full_disk(server: Server, words: str) -> None:
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers[f"POST {reviews}"] = {"metadata": {}, "spec": {}, "status": {"allowed": True}}
    with Path("/dev/full").open("w") as full:
        done = elasticjob(server, *words.split(), stdout=full.fileno())
    assert done.stderr.splitlines()[-1] == "error: cannot write the output: No space left on device"
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_letters_that_the_terminal_has_not(server: Server) -> None:
    server.answers[f"{PODS}/mnist-1-0/log"] = "größer\nlast\n"
    done = elasticjob(
        server, "logs", "mnist", "--rank", "1", stdout=subprocess.PIPE, PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "gr\\xf6\\xdfer\nlast\n"


@pytest.mark.parametrize("kubeconfig", ["a: b: c", "contexts: 5", "\xff"])
def test_completion_by_tab_is_quiet(server: Server, tmp_path: Path, kubeconfig: str) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(kubeconfig.encode("latin-1"))
    done = elasticjob(
        server,
        stdout=subprocess.PIPE,
        KUBECONFIG=str(broken),
        _ELASTICJOB_COMPLETE="bash_complete",
        COMP_WORDS="elasticjob status m",
        COMP_CWORD="2",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_ctrl_c_at_a_question(server: Server) -> None:
    words = [sys.executable, "-m", "elasticjob_client.cli.main", "delete", "mnist"]
    with terminal(words) as shown:
        shown.wait(lambda text: "delete it? [y/N]:" in text)
        assert shown.interrupt() == 130, shown.text
        assert "Aborted" not in shown.text
    assert not [method for method, _, _ in server.asked if method == "DELETE"]
