"""The page that shows a job over time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

from elasticjob_client.cli.page import colours, page
from elasticjob_client.explain.report import Report, report
from elasticjob_client.explain.times import ticks
from elasticjob_client.pods import Pod
from elasticjob_client.resource import Charge, ElasticJob
from tests.unit.client.made import LOST, NOW, after_a_loss, ago, conditions, job, pod
from tests.unit.client.server import Server

LOST_NODE = Path(__file__).parents[3] / "docs" / "pictures" / "lost-node.json"
STARTED = NOW - timedelta(seconds=2450)
PODS = [
    pod("mnist-0-0", started=STARTED),
    pod("mnist-1-0", "Failed", started=STARTED, ended=NOW - timedelta(seconds=120), exit_code=137),
    pod("mnist-1-1", started=NOW - timedelta(seconds=119)),
    pod("mnist-2-0", "Pending"),
]


class Page(HTMLParser):
    """Counts what is drawn, and notes what is opened and not closed, or loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.fills: set[str | None] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fills.add(dict(attrs).get("fill"))
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_rounds_and_pods_are_bars_over_time() -> None:
    found = report(after_a_loss(), PODS, NOW)
    assert [(bar.row, bar.label, bar.kind) for bar in found.bars] == [
        ("rounds", "1", "Started"),
        ("rounds", "2", "PodLost"),
        ("slot 0", "mnist-0-0", "pod"),
        ("slot 1", "mnist-1-0", "pod that failed"),
        ("slot 1", "mnist-1-1", "pod"),
    ]
    assert (found.begin, found.end) == (STARTED, NOW)
    # Round 2 made its first step 4.1 s after round 1 had ended.
    assert [((NOW - time).total_seconds(), step) for time, step in found.progress] == [
        (2400.0, 1),
        (120.0, 1850),
        (115.9, 1801),
        (0.0, 2000),
    ]
    assert found.nodes == [("b", 1)]


def stuck() -> ElasticJob:
    """A node was lost with all members, and nothing has been known of it since."""
    seen = msgspec.to_builtins(after_a_loss().status)
    now, before = seen["roundHistory"]
    lost = "mnist-0-0 (group rank 0) and mnist-1-1 (group rank 1) were lost: their node a does not answer"
    end = {"time": ago(100), "cause": "NodeLost", "account": "infrastructure", "message": lost}
    members = [{**one, "state": "Lost", "message": lost} for one in seen["participants"]]
    charge = {"time": ago(100), "cause": "NodeLost", "round": 2, "podName": "mnist-1-1", "nodeName": "a"}
    infrastructure = {**seen["accounts"][1], "charges": [*seen["accounts"][1]["charges"], charge]}
    return after_a_loss(
        conditions=conditions("WaitingForFencing", "node a may still train"),
        currentRound={**seen["currentRound"], "phase": "Broken"},
        roundHistory=[{**now, "end": end}, before],
        participants=members,
        accounts=[seen["accounts"][0], infrastructure],
    )


def test_a_job_that_stands_still_is_drawn_standing_still_until_now() -> None:
    pods = [pod("mnist-0-0", started=STARTED), pod("mnist-2-0", started=STARTED)]
    found = report(stuck(), pods, NOW)
    assert found.end == NOW, "not the end of the last round"
    waits = found.bars[2]
    assert (waits.row, waits.kind, waits.label) == ("rounds", "no round", "WaitingForFencing")
    assert waits.text == "no round for 100s: WaitingForFencing: node a may still train"
    assert ((NOW - waits.begin).total_seconds(), waits.end) == (100.0, NOW)
    drawn = {bar.label: bar for bar in found.bars[3:]}
    lost = drawn["mnist-0-0"]
    assert (lost.row, lost.kind, (NOW - lost.end).total_seconds()) == ("slot 0", "pod that was lost", 100.0)
    assert lost.text == "mnist-0-0 on node a; was lost: " + lost.text.partition("lost: ")[2]
    assert "their node a does not answer" in lost.text
    gone = drawn["mnist-1-1"]  # its object was deleted, and it was charged
    assert (gone.row, gone.kind) == ("slot 1", "pod that was lost")
    assert ((NOW - gone.begin).total_seconds(), (NOW - gone.end).total_seconds()) == (118.0, 100.0)
    assert (drawn["mnist-2-0"].kind, drawn["mnist-2-0"].end) == ("pod", NOW)
    assert [((NOW - time).total_seconds(), step) for time, step in found.progress][-1] == (100.0, 2000)
    text = page(found)
    assert "no round for 100s: WaitingForFencing" in text
    assert text.count("<title>") == 1 + len(found.bars)


def lost_node() -> Report:
    """Of a real run: a node with a member died, and the next round has begun."""
    run = json.loads(LOST_NODE.read_text())
    pods = [msgspec.convert(pod, Pod) for pod in run["pods"]]
    return report(msgspec.convert(run["job"], ElasticJob), pods, datetime.fromisoformat(run["now"]))


def test_a_lost_pod_whose_object_is_gone_is_drawn_while_the_next_round_trains() -> None:
    found = lost_node()
    failure = json.loads(LOST_NODE.read_text())["job"]["status"]["lastFailure"]
    bars = {bar.label: bar for bar in found.bars}
    lost, first, second = bars[failure["podName"]], bars["1"], bars["2"]
    assert (lost.kind, lost.begin, lost.end) == ("pod that was lost", first.begin, first.end)
    assert lost.text.endswith(f"was lost: {failure['message']}")
    assert "was lost: node-" in failure["message"]
    assert {one.cause for one in found.lost} == {first.kind, second.kind}, "one loss has one cause"


def test_a_pod_that_is_gone_and_whose_worker_failed_was_not_lost() -> None:
    job = after_a_loss()
    assert job.status
    now, before = job.status.round_history
    assert before.end
    end = msgspec.structs.replace(before.end, account="application")
    history = [now, msgspec.structs.replace(before, end=end)]
    status = msgspec.structs.replace(job.status, round_history=history)
    found = report(msgspec.structs.replace(job, status=status), [], NOW)
    assert [bar.label for bar in found.bars] == ["1", "2"]


def test_a_suspended_job_and_one_that_has_ended() -> None:
    job = stuck()
    assert job.status
    other = after_a_loss(conditions=conditions("Suspended", "by spec")).status
    assert other is not None
    suspended = msgspec.structs.replace(job.status, conditions=other.conditions)
    found = report(msgspec.structs.replace(job, status=suspended), [], NOW)
    assert [bar.label for bar in found.bars if bar.kind == "no round"] == ["Suspended"]
    ended = msgspec.structs.replace(
        job.status, terminal_state="Failed", completion_time=NOW - timedelta(seconds=99)
    )
    found = report(msgspec.structs.replace(job, status=ended), [], NOW)
    assert [bar for bar in found.bars if bar.kind == "no round"] == []
    assert found.end == NOW - timedelta(seconds=100), "all is over"


def test_a_pod_whose_worker_failed_and_that_goes_on_was_not_lost() -> None:
    job = after_a_loss()
    assert job.status
    charge = msgspec.convert({"time": ago(120), "round": 1, "podName": "mnist-0-0"}, Charge)
    account = msgspec.structs.replace(job.status.accounts[0], charges=[charge])
    status = msgspec.structs.replace(job.status, accounts=[account])
    found = report(msgspec.structs.replace(job, status=status), PODS, NOW)
    assert {bar.label: bar.kind for bar in found.bars}["mnist-0-0"] == "pod"


def test_the_page_is_whole_and_loads_nothing() -> None:
    drawn = report(after_a_loss(), PODS, NOW)
    text = page(drawn)
    found = Page(text)
    assert (found.open, found.loaded) == ([], [])
    assert found.tags.count("rect") == 5
    shown = colours(drawn.bars)
    assert {shown[kind] for kind in ("pod that failed", "Started", "PodLost")} <= found.fills
    assert "<th>rendezvous</th>" in text
    assert "; job active for 41m" in text
    assert "http" not in text
    assert f"ended by PodLost: {LOST}" in text
    assert "goodput 97 %" in text


def test_what_a_job_says_cannot_become_markup() -> None:
    history = [{"number": 1, "startTime": "2026-05-04T11:00:00Z", "cause": "<script>alert(1)</script>"}]
    hostile = after_a_loss(roundHistory=history)
    assert "<script" not in page(report(hostile, [], NOW))


def test_a_job_without_a_round_has_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="mnist has had no round"):
        report(job({}), [], NOW)


@pytest.mark.usefixtures("server")
def test_the_command_writes_it(run: Callable[..., Result], tmp_path: Path) -> None:
    target = tmp_path / "mnist.html"
    assert run("report", "mnist", "-f", str(target)).stdout == f"wrote {target}\n"
    assert Page(target.read_text()).open == []
    refused = run("report", "mnist", "-f", str(tmp_path))
    assert refused.exit_code != 0


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (("-o", "report.html"), "<!doctype html>"),
        (("-f", "report.html"), "<!doctype html>"),
        (("-o", "html", "-f", "report.html"), "<!doctype html>"),
        (("-o", "report.json"), "{"),
        (("-o", "json", "-f", "report.json"), "{"),
    ],
)
def test_output_is_a_kind_or_a_file(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], begin: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", "mnist", *words)
    (file,) = tmp_path.glob("report.*")
    assert (result.stdout, file.name) == (f"wrote {file.name}\n", words[-1])
    assert file.read_text().startswith(begin)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "report.pdf"), "expected html or json; -f names a file"),
        (("-o", "text"), "expected html or json"),
        (("-o", "a.html", "-f", "b.html"), "-o a.html and -f b.html are two files"),
        (("-o", "."), "expected html or json"),
    ],
)
def test_an_output_that_is_neither_is_refused(
    run: Callable[..., Result], words: list[str], said: str
) -> None:
    result = run("report", "mnist", *words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_round_is_paler_until_its_first_step() -> None:
    found = report(after_a_loss(), PODS, NOW)
    waits = [
        (bar.label, (bar.waits_until - bar.begin).total_seconds()) for bar in found.bars if bar.waits_until
    ]
    assert waits == [("1", 0.0), ("2", 2.1)]
    assert page(found).count("fill-opacity") == 1


def test_a_round_without_a_step_is_pale_to_its_end() -> None:
    history = [{"number": 1, "startTime": "2026-05-04T11:00:00Z", "cause": "Started"}]
    (bar,) = report(after_a_loss(roundHistory=history), [], NOW).bars
    assert bar.waits_until == bar.end


@pytest.mark.parametrize(
    ("seconds", "marks"),
    [
        (0.2, [0, 1]),
        (7, [0, 2, 4, 6]),
        (256, [0, 60, 120, 180, 240]),
        (86400, [0, 14400, 28800, 43200, 57600, 72000, 86400]),
        (30 * 86400, [0, 432000, 864000, 1296000, 1728000, 2160000, 2592000]),
    ],
)
def test_an_axis_has_round_numbers(seconds: float, marks: list[int]) -> None:
    assert ticks(seconds) == marks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-f x.pdf", "-f x.pdf: expected a name that ends in .html or .json"),
        ("-o json -f a.html", "-o json and -f a.html are two formats: name one"),
        ("-f -", "'-' is no file: -o json prints the report"),
    ],
)
def test_a_file_that_contradicts_its_format(
    server: Server, run: Callable[..., Result], words: str, said: str
) -> None:
    result = run("report", "mnist", *words.split())
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not server.asked


@pytest.mark.usefixtures("server")
def test_an_old_report_stays_where_the_new_one_has_no_room(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "old.html"
    target.write_text("old")
    target.chmod(0o640)

    def full(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text.encode()[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        result = run("report", "mnist", "-f", str(target))
    assert str(result.exception) == f"cannot write {target}: No space left on device"
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.name != "kubeconfig"] == ["old.html"]
    run("report", "mnist", "-f", str(target))
    assert target.read_text().startswith("<!doctype html>")
    assert target.stat().st_mode & 0o777 == 0o640


def test_what_is_no_regular_file_is_written_straight(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elasticjob_client.cli.main", "report", "mnist", "-f", "/dev/stdout"],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("<!doctype html>")
    assert done.stderr == "wrote /dev/stdout\n"
