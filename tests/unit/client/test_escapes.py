"""What pods, registries and others have written says nothing to a terminal, whatever command shows it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import elasticjob_client
from elasticjob_client.cli.main import _COMMANDS, main
from elasticjob_client.explain.terminal_text import coloured
from tests.unit.client.conftest import body, container, core_event
from tests.unit.client.made import ago, conditions
from tests.unit.client.server import EVENTS, JOBS, PODS, Server, refusal
from tests.unit.client.test_output import cluster  # noqa: F401 - a fixture
from tests.unit.client.test_walk import COMMANDS

TITLE, CLIPBOARD, CLEAR, BLINK, RESET, C1, BIDI = (
    "\x1b]0;PWNED\x07",
    "\x1b]52;c;cm0gLXJmIH4=\x1b\\",
    "\x1b[3J",
    "\x1b[45;5m",
    "\x1bc",
    "\x9b3J\x9d0;PWNED\x9c",
    "\u202egnp.exe",
)
ROOT = Path(elasticjob_client.__file__).parent
EVIL = f"evil{TITLE}{CLIPBOARD}{CLEAR}{BLINK}{RESET}{C1}{BIDI}\x1bP+q\x1b\\ \x1b]0;open \rfake\b\b"
KUBECTL = f"""\
#!/usr/bin/env python3
import json, sys
pod = sys.argv[sys.argv.index("exec") + 1]
if pod == "mnist-1-1":
    sys.exit("error: " + {EVIL!r})
print(json.dumps({{"rank": 0, "localRank": 0, "pid": 1, "stack": "Stack:\\n  " + {EVIL!r}}}))
"""
EVENING = {
    **COMMANDS,
    "why": ("why", "mnist"),
    "events": ("events", "mnist", "--pods"),
    "logs": ("logs", "mnist", "--all"),
    "top": ("top", "mnist"),
    "report": ("report", "mnist", "-f", "/dev/stdout"),
    "convert": ("convert", "PODS"),
}
WORDS = {
    **{name: words for name, words in EVENING.items() if name != "exec"},  # it becomes kubectl
    "logs of one": ("logs", "mnist", "--rank", "1"),
    "top of all": ("top",),
    "an error": ("status", "none"),
    "run to the end": ("run", __file__, "--image", "i", "--name", "mnist"),
    **{
        f"{name} as JSON": (*words, "-o", "json")
        for name, words in EVENING.items()
        if name not in ("exec", "report", "convert")
    },
}
SHOWN = ("status", "why", "logs", "events", "stacks", "report", "top")
CONTROLS = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOURS = re.compile("\x1b\\[[0-9;]*m")


def test_every_command_that_prints_is_here() -> None:
    assert {words[0] for words in WORDS.values()} == set(_COMMANDS) - {"exec", "completion"}


def evil(found: Any) -> Any:
    """The same with such text wherever free text stands."""
    if isinstance(found, list):
        return [evil(one) for one in found]
    if isinstance(found, dict):
        free = ("message", "reason", "image", "coldReason")
        return {
            key: f"{value}{EVIL}" if key in free and isinstance(value, str) else evil(value)
            for key, value in found.items()
        }
    return found


@pytest.fixture
def hostile(cluster: Server) -> Server:  # noqa: F811
    """It says of everything what a hostile pod would have it say."""
    job = body()
    job["status"]["participants"][0]["message"] = "its node is cut off"
    server = cluster
    server.put(evil(job))
    server.answers[f"POST {JOBS}"] = server.answers[f"{JOBS}/mnist"]
    waits = container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    third = json.loads(json.dumps(server.answers[PODS]["items"][1]))
    third["metadata"]["name"] = "mnist-2-0"
    third["status"] = {"phase": "Pending", "containerStatuses": [waits]}
    server.answers[PODS] = evil({**server.answers[PODS], "items": [*server.answers[PODS]["items"], third]})
    server.answers[EVENTS] = evil({"kind": "EventList", "metadata": {}, "items": [core_event("A", "b", 1)]})
    server.answers[f"{JOBS}/none"] = refusal(404, "NotFound", EVIL, "none")
    for pod in ("mnist-0-0", "mnist-1-1"):
        server.answers[f"{PODS}/{pod}/log"] = f"{ago(5)} {EVIL}\n"
    return server


def ended(server: Server) -> None:
    job = server.answers[f"{JOBS}/mnist"]
    job["status"].update(terminalState="Failed", conditions=evil(conditions("Failed", "m", ("A", "b"))))
    job["status"]["lastFailure"].update(podName="mnist-1-1", podUID="uid-mnist-1-1", exitCode=1)


def words_of(name: str, server: Server, tmp_path: Path) -> list[str]:
    program = tmp_path / "bin" / "kubectl"
    program.write_text(KUBECTL)
    if WORDS[name][0] in ("why", "logs", "run"):
        ended(server)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": EVIL}}))
    return [str(manifest) if word == "PODS" else word for word in WORDS[name]]


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(server.kubeconfig), "TERM": "xterm-256color"}


def call(words: Sequence[str], server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in this process."""
    monkeypatch.setattr("sys.argv", ["elasticjob", *words])
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    with suppress(SystemExit):
        main()


@pytest.mark.parametrize("name", [name for name in WORDS if not name.startswith("top") or "JSON" in name])
def test_into_a_pipe_nothing_comes_that_a_terminal_acts_on(
    hostile: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    call(words_of(name, hostile, tmp_path), hostile, monkeypatch)
    out, err = capfd.readouterr()
    assert not CONTROLS.findall(out), out
    assert not CONTROLS.findall(err), err
    if WORDS[name][0] in SHOWN:
        assert "evil" in out + err
    if "JSON" in name and WORDS[name][0] in ("status", "why", "events", "logs", "stacks"):
        found = list(map(json.loads, out.splitlines())) if WORDS[name][0] == "logs" else json.loads(out)
        assert json.dumps(EVIL)[1:-1] in json.dumps(found), "nothing of it is lost"


def test_an_error_that_nobody_foresaw_is_plain(server: Server) -> None:
    program = (
        f"from elasticjob_client.cli import main as m; m.program = lambda **_: 1 / int({EVIL!r}); m.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(server), capture_output=True)
    assert b"ValueError" in done.stderr
    assert not CONTROLS.findall(done.stderr.decode())


def test_logs_are_as_they_are_where_that_is_asked_for(
    hostile: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    call([*words_of("logs of one", hostile, tmp_path), "--raw"], hostile, monkeypatch)
    assert f"{EVIL}\n" in capfd.readouterr().out


ON_A_TERMINAL = ("status", "why", "logs", "logs of one", "top", "an error")
"""Each way to print: tables, text, lines, a drawn screen, stderr."""


@pytest.mark.parametrize("name", ON_A_TERMINAL)
def test_on_a_terminal_colours_and_cursor_are_ours(hostile: Server, tmp_path: Path, name: str) -> None:
    words = [sys.executable, "-m", "elasticjob_client.cli.main", *words_of(name, hostile, tmp_path)]
    shown = on_a_terminal(words, environment(hostile), "q")
    assert "fake" in shown
    for text in ("\x1b]", CLEAR, RESET, "\x1bP", "\b", "\x9b", "\x9d", "\u202e", "\rfake"):
        assert text not in shown, (text, shown)
    if name not in ("logs", "logs of one"):
        assert BLINK not in shown, "a pod's colours would stay on after it"
    if name != "top":
        assert not CONTROLS.findall(COLOURS.sub("", shown)), shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step \x1b[32m7\x1b[0m", "step \x1b[32m7\x1b[0m\x1b[0m"),
        ("\x1b[>4;1mred\x1b[2Jx", "redx"),
        ("\x1b[31mred\x1b]0;t\x07", "\x1b[31mred\x1b[0m"),
        (
            "gr\u00fc\u00df \U0001f468\u200d\U0001f469\t\ue0b0",
            "gr\u00fc\u00df \U0001f468\u200d\U0001f469\t\ue0b0",
        ),
    ],
)
def test_colours_of_a_log_end_with_its_line(text: str, shown: str) -> None:
    assert coloured(text) == shown


def test_only_these_go_around_the_guard() -> None:
    around = {
        f"{file.stem}: {word}"
        for file in (ROOT / "cli").glob("*.py")
        for word in ("raw(", "Console(", ".buffer", "os.write(", "__stdout__", "__stderr__")
        for line in file.read_text().splitlines()
        if word in line and "def " not in line and "class " not in line
    }
    assert around == {"printing: raw(", "main: raw(", "screen: raw(", "screen: Console("}


def on_a_terminal(words: Sequence[str], environment: dict[str, str], key: str) -> str:
    """All that is written there; the key is pressed whenever nothing comes."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    found = b""
    with suppress(OSError):  # Linux: the program has closed its side
        while True:
            if select.select([ours], [], [], 0.5)[0]:
                found += os.read(ours, 65536)
            elif found:
                os.write(ours, key.encode())
    process.wait(60)
    os.close(ours)
    return found.decode()
