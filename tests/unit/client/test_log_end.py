"""The end of a failed pod's log: what the script said, not what torchrun says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from elasticjob_client import Jobs
from elasticjob_client.cli.run_follow import follow
from elasticjob_client.explain.log_end import without_torchruns
from elasticjob_client.explain.repeated_advice import once
from elasticjob_client.explain.terminal_text import excerpt
from tests.unit.client.conftest import body, container
from tests.unit.client.made import ago, conditions
from tests.unit.client.server import PODS, Server
from tests.unit.client.test_watching import changed

Run = Callable[..., Result]

WORKER = [
    "step 7",
    "Traceback (most recent call last):",
    '  File "/code/train.py", line 3, in <module>',
    "    main()",
    '  File "/code/train.py", line 2, in main',
    '    raise ValueError("bad input 7")',
    "ValueError: bad input 7",
    "E1124 10:00:00.1 12 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)",
]
FRAMES = [
    line
    for number in range(12)
    for line in (f'  File "/usr/lib/torch/distributed/run.py", line {number}, in run', "    call()")
]
LAST = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError: the job has failed: a worker failed"
TORCHRUN = ["Traceback (most recent call last):", *FRAMES, LAST]
CHAINED = [
    "Traceback (most recent call last):",
    *FRAMES,
    "TimeoutError: barrier",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *TORCHRUN,
]
ADVICE = (
    "see its log (for the exception's text here, decorate the main function with "
    "torch.distributed.elastic.multiprocessing.errors.record)"
)


@pytest.mark.parametrize(
    "ending", [TORCHRUN, CHAINED, ["", *TORCHRUN, "", "last"]], ids=["one", "chain", "more"]
)
def test_torchruns_own_ending_is_left_out(ending: list[str]) -> None:
    assert without_torchruns([*WORKER, *ending]) == WORKER


@pytest.mark.parametrize("log", [[], WORKER, TORCHRUN, ["a", "", "b"]])
def test_a_log_without_an_ending_or_with_nothing_else_stays(log: list[str]) -> None:
    assert without_torchruns(log) == log


def failed(server: Server) -> None:
    end = conditions("Failed", "a worker failed", ("ApplicationRestartsExhausted", f"exit code 1; {ADVICE}"))
    failure = {**body()["status"]["lastFailure"], "message": f"rank 1: exit code 1; {ADVICE}", "exitCode": 1}
    server.put(changed(1, "Failed", conditions=end, lastFailure=failure))
    server.answers[f"{PODS}/mnist-1-0/log"] = "\n".join([*WORKER, *TORCHRUN]) + "\n"


def test_why_shows_the_scripts_error(server: Server, run: Run) -> None:
    failed(server)
    text = run("why", "mnist").stdout
    assert "  ValueError: bad input 7\n" in text
    assert "RendezvousClosedError" not in text
    assert text.count("decorate the main function") == 1
    assert json.loads(run("why", "mnist", "--lines", "2", "-o", "json").stdout)["log"] == WORKER[-2:]
    assert "log" not in json.loads(run("why", "mnist", "--lines", "0", "-o", "json").stdout)


def test_why_of_a_pod_that_goes_on_ends_with_the_failure(server: Server, run: Run) -> None:
    """Its worker has failed, and its torchrun is in the next round: the last lines are of that."""
    pod: dict[str, Any] = server.answers[PODS]["items"][1]
    running = {"running": {"startedAt": ago(900)}}
    pod["status"] = {"phase": "Running", "containerStatuses": [container(running)]}
    server.answers[f"{PODS}/mnist-1-0/log"] = (
        f"{ago(500)} step 1\n{ago(120)} ValueError: bad\n" + f"{ago(100)} of round 2\n" * 300
    )
    assert json.loads(run("why", "mnist", "-o", "json").stdout)["log"] == ["step 1", "ValueError: bad"]
    server.answers[f"{PODS}/mnist-1-0/log"] = "".join(f"{ago(119)} {line}\n" for line in [*WORKER, *TORCHRUN])
    assert json.loads(run("why", "mnist", "-o", "json").stdout)["log"] == WORKER, "it is about to end"
    asked = [path for _, path, _ in server.asked if path.startswith(f"{PODS}/mnist-1-0/log")]
    assert "sinceTime=" in asked[-1]
    server.answers[f"{PODS}/mnist-1-0/log"] = "of round 2\n"
    server.no_times = True
    found = json.loads(run("why", "mnist", "-o", "json").stdout)["log"]
    assert found[-1].endswith("of round 2"), "as well as it can be told"


def test_run_ends_with_the_scripts_error(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    failed(server)
    with Jobs() as jobs:
        assert follow(jobs, "mnist") == 1
    said = capsys.readouterr().err
    assert "The end of mnist-1-0's log:\n  step 7\n" in said
    assert "  ValueError: bad input 7\n" in said
    assert "RendezvousClosedError" not in said
    assert said.endswith("`elasticjob why mnist` tells more\n")


EVIL = "evil \x1b]0;PWNED\x07\x1b[31m red\x1b[2J\x1b[m\x9bm\u2028 \x1b]0;open"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (EVIL, "evil  red   ]0;open"),
        ("  \x1b[1mFile\x1b[0m\t\u00e9 \u4e00", "  File\t\u00e9 \u4e00"),
        ("\r10%\r20%Traceback\r", "20%Traceback"),
        ("\r", ""),
    ],
)
def test_an_excerpt_says_nothing_to_the_terminal(line: str, shown: str) -> None:
    assert excerpt(line) == shown


def test_why_and_run_show_excerpts(server: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    failed(server)
    server.answers[f"{PODS}/mnist-1-0/log"] = f"{EVIL}\r\n\x1b[31mred\x1b[m\n"
    with Jobs() as jobs:
        follow(jobs, "mnist")
    for text in (run("why", "mnist").stdout, capsys.readouterr().err):
        assert f"\n  {excerpt(EVIL)}\n  red\n" in text
        assert "\x1b" not in text


def test_advice_is_told_once() -> None:
    assert once([f"a; {ADVICE}", "b", f"c; {ADVICE}. {ADVICE}"]) == [f"a; {ADVICE}", "b", "c."]


def test_status_gives_the_advice_once(server: Server, run: Run) -> None:
    found = changed(1)
    found["status"]["participants"][0]["message"] = f"exit code 1; {ADVICE}"
    found["status"]["participants"][1]["message"] = f"exit code 1; {ADVICE}"
    found["status"]["roundHistory"][1]["end"]["message"] = f"mnist-1-0: exit code 1; {ADVICE}"
    server.put(found)
    text = run("status", "mnist").stdout
    assert text.count("decorate the main function") == 1
    assert "round 1 ended: mnist-1-0: exit code 1\n" in text


@pytest.mark.parametrize(
    ("used", "allowed", "said"),
    [
        (1, 0, "application, which allows no restart"),
        (6, 5, "application: 6 restarts, one more than the 5 allowed"),
        (2, 5, "application: 2 of 5 restarts"),
    ],
)
def test_a_limit_that_is_passed_is_told_in_words(
    server: Server, run: Run, used: int, allowed: int, said: str
) -> None:
    found = changed(1)
    found["status"]["roundHistory"][1]["end"]["account"] = "application"
    found["status"]["accounts"] = [{"name": "application", "used": used, "maxRestarts": allowed}]
    server.put(found)
    assert f"It is counted under {said}." in run("why", "mnist").stdout
