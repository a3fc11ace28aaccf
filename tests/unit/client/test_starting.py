"""What happens before a command has begun: Ctrl-C while modules are imported, and streams that are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.client.server import Server

PRESSED = """\
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from elasticjob_client.__main__ import {entry}
{entry}()
"""


HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""Also where the tests run in the background of a shell, which lets such jobs ignore Ctrl-C."""


def called(words: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("module", "entry"),
    [("click", "main"), ("click", "complete"), ("elasticjob_client.cli.reading", "main")],
)
def test_ctrl_c_ends_it_at_any_time(module: str, entry: str) -> None:
    found = called([sys.executable, "-c", HEARD + PRESSED.format(module=module, entry=entry), "list"])
    assert (found.returncode, found.stdout, found.stderr.strip()) == (130, "", "")


def test_little_is_imported_before_it_is_quiet() -> None:
    code = "import sys; before = set(sys.modules); import elasticjob_client.__main__; "
    found = called([sys.executable, "-c", f"{code}print(*sorted(set(sys.modules) - before))"])
    assert not set(found.stdout.split()) & {"typing", "re", "contextlib", "click"}


def test_ctrl_c_that_the_shell_ignores_is_ignored() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    found = called(
        [sys.executable, "-c", code + PRESSED.format(module="click", entry="main"), "completion", "bash"]
    )
    assert found.returncode == 0


def shell(server: Server, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    return called(["sh", "-c", f"{sys.executable} -m elasticjob_client {line}"], env=environment, cwd=folder)


@pytest.mark.parametrize("line", ["list", "--help", "status mnist -o json", "delete mnist --yes"])
def test_a_closed_stdout_is_said_and_nothing_is_done(server: Server, tmp_path: Path, line: str) -> None:
    found = shell(server, f"{line} </dev/null >&-", tmp_path)
    assert (found.returncode, found.stderr) == (1, "error: cannot write the output: stdout is closed\n")
    assert not server.asked
    assert shell(server, f"{line} </dev/null >&- 2>&-", tmp_path).returncode == 1


@pytest.mark.parametrize("line", ["delete mnist", "drill mnist --kill rank:0", "convert -"])
def test_a_closed_stdin_is_an_empty_one(server: Server, tmp_path: Path, line: str) -> None:
    closed, empty = (shell(server, f"{line} {stdin}", tmp_path) for stdin in ("<&-", "</dev/null"))
    assert (closed.returncode, closed.stdout, closed.stderr) == (1, empty.stdout, empty.stderr)
    assert "error: " in closed.stderr.splitlines()[-1]
    assert "input()" not in closed.stderr


def test_a_closed_stderr_takes_all(server: Server, tmp_path: Path) -> None:
    found = shell(server, "logs nobody </dev/null 2>&-", tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
