"""``elasticjob top`` in a real terminal, and the report in a real browser, beside a job that trains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun
from tests.e2e.test_client import PROGRAM, call
from tests.screens.browser import opened
from tests.screens.drawn import assert_drawn
from tests.screens.tmux import terminal

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def steps_per_second(text: str) -> float:
    """Of the job that is shown; 0 before it is known."""
    found = re.search(r" ms per step, ([\d.]+) steps/s; goodput ", text)
    return float(found[1]) if found else 0.0


def test_top_and_the_report_of_a_job(job: JobRun, tmp_path: Path) -> None:
    job.apply([*TORCHRUN, str(SCRIPTS / "reports.py"), str(job.folder)])
    job.training(1, members=2)
    flags = f"--kubeconfig {job.cluster.kubeconfig} -n {job.namespace}"
    with terminal(tmp_path) as shown:
        shown.enter(f"{PROGRAM} {flags} top --interval 0.5")
        text = shown.wait(lambda text: re.search(r"\d+ +[\d.]+ +\d+ % ", text), "steps and steps/s")
        assert f"1 job in namespace {job.namespace}, 1 training" in text
        assert re.search(rf"^{job.name} +Training +2/2 +1 +0 ", text, re.MULTILINE)
        assert "█" in text.split("LAST HOUR")[1].split("\n")[1]
        shown.press("q")
        shown.enter("echo it ended with $?")
        text = shown.wait(lambda text: "it ended with" in text, "what was there before")
        assert text.splitlines()[0] == "it ended with 0"
        assert "LAST HOUR" not in text

        shown.enter(f"{PROGRAM} {flags} top {job.name} --interval 0.5")
        text = shown.wait(lambda text: steps_per_second(text) > 0, "steps/s")
        print(text)
        assert steps_per_second(text) < 20, "a step takes 50 ms at least"
        assert f"{job.name} is Training: round 1 with 2 members" in text
        lost = job.member(1)["podName"]
        for rank in (0, 1):
            member = job.member(rank)
            row = rf"^{rank} +{member['podName']} +{member['nodeName']} +Member +1$"
            assert re.search(row, text, re.MULTILINE), row
        assert re.search(r"^\d\d:\d\d:\d\d █+ \d\d:\d\d:\d\d UTC, ", text, re.MULTILINE)

        job.kill_pod(lost)
        text = shown.wait(lambda text: "round 2 (Active), 2 of 2 members" in text, "the next round")
        text = shown.wait(lambda text: "▼" in text.split("q: quit")[0].split("█ a round")[0], "the loss")
        lines = text.splitlines()
        (at,) = [n for n, line in enumerate(lines) if line.endswith(" UTC, ") or re.search(r" UTC, \d", line)]
        column = lines[at].index("▼")
        assert lines[at + 1][column] in "└┘", "the cause stands below it"
        assert "PodLost" in lines[at + 1]
        assert f"round 1 ended: {lost} (group rank 1) was lost" in text

        shown.resize(80, 24)
        assert shown.size == (80, 24)
        text = shown.wait(
            lambda text: text.endswith("q: quit") and "... a higher terminal shows more" in text,
            "it is drawn again for the smaller terminal",
        )
        assert f"{job.name} is Training: round 2" in text
        assert re.search(r" UTC, \w+$", text, re.MULTILINE), "the bar has one line"
        shown.resize(120, 40)
        shown.wait(lambda text: "shows more" not in text and "infrastructure" in text, "all of it again")
        shown.press("q")
        shown.enter("echo it ended with $?")
        shown.wait(lambda text: text.splitlines()[:1] == ["it ended with 0"], "the shell again")

    page = tmp_path / "report.html"
    call(job, "report", job.name, "-o", str(page))
    with opened(page, tmp_path / "browser.log") as seen:
        drawn = assert_drawn(seen, page)
        assert len(drawn.bars) == 5, "two rounds, and three pods"
        assert {"slot 0", "slot 1"} <= set(drawn.texts)
    job.stop()
    job.complete()
