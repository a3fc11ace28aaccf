"""The view that is drawn again and again, also in a terminal that understands what is drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import pairwise

import pytest
from click.testing import Result
from rich.console import Console

from elasticjob_client import ElasticJob
from elasticjob_client.cli.live import view
from elasticjob_client.explain.timeline import Slice, captions, span, timeline
from elasticjob_client.explain.top import TopJob, TopRow, one, rows, steps_per_second
from elasticjob_client.resource import Round, RoundEnd
from tests.terminal import Terminal, terminal
from tests.unit.client.conftest import body
from tests.unit.client.made import NOW, after_a_loss, conditions, job, pod
from tests.unit.client.server import JOBS, Server, refusal


def top(*words: str) -> AbstractContextManager[Terminal]:
    """The program on a terminal, looking often."""
    return terminal([sys.executable, "-m", "elasticjob_client.cli.main", "top", "--interval", "0.2", *words])


def test_a_job_is_drawn_followed_through_an_outage_and_left_with_q(server: Server) -> None:
    with top("mnist") as shown:
        first = shown.wait(lambda text: "q: quit" in text)
        assert "mnist is Training" in first
        assert "0           mnist-0-0  a     Member  8" in first
        assert "step 2000; 412 ms per step, 2.4 steps/s; goodput 97 %" in first
        bar, causes = next(
            (line, below) for line, below in pairwise(first.splitlines()) if "▼" in line and "█" in line
        )
        assert causes.index("└PodLost") == bar.index("▼"), "the cause stands below the round's end"
        path = f"{JOBS}/mnist"
        known = server.answers[path]
        server.answers[path] = refusal(503, "ServiceUnavailable", "apiserver is shutting down")
        away = shown.wait(lambda text: "shutting down" in text)
        assert "mnist is Training" in away
        training = conditions("Suspended", "suspended by spec.suspend")
        server.answers[path] = {**known, "status": {**known["status"], "conditions": training}}
        shown.wait(lambda text: "mnist is Suspended" in text and "shutting down" not in text)
        shown.press("q")
        assert shown.end() == 0


def test_all_jobs_are_drawn_and_a_deleted_one_ends_its_view(server: Server) -> None:
    with top() as shown:
        text = shown.wait(lambda text: "LAST HOUR" in text)
        assert "1 job in namespace research, 1 training" in text
        assert "mnist  Training  2/2" in text
    with top("mnist") as shown:
        shown.wait(lambda text: "q: quit" in text)
        server.answers[f"{JOBS}/mnist"] = refusal(404, "NotFound", "not found", "mnist")
        shown.wait(lambda text: "error: cannot read ElasticJob research/mnist: not found" in text)
        assert shown.end() == 1


def drawn(width: int, height: int, found: list[TopRow] | TopJob, namespace: str | None = None) -> list[str]:
    """Lines on a terminal of this size."""
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(view(found, namespace, "", console), end="")
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (80, 12)])
def test_bar_and_keys_stay_on_a_small_terminal(width: int, height: int) -> None:
    pods = [pod("mnist-0-0"), pod("mnist-1-1")]
    lines = drawn(width, height, one(after_a_loss(), pods, NOW, width - 32))
    assert lines[0] == "mnist is Training: round 2 with 2 members, leader mnist-0-0"
    assert len(lines) <= height
    assert lines[-1] == "q: quit"
    assert "▼" in lines[-5]
    assert lines[-5].endswith(" 12:00:00 UTC, 40m"), "the bar has one line"
    assert ("... a higher terminal shows more" in lines) == (height < 40)


def test_the_list_of_one_namespace_does_not_repeat_it() -> None:
    lines = drawn(120, 40, rows([after_a_loss()], NOW, 20), "research")
    assert lines[0].startswith("1 job in namespace research, 1 training; ")
    assert lines[2].split()[:2] == ["NAME", "STATE"]
    assert lines[3].startswith("mnist  Training  2/2 ")


def test_the_list_of_a_narrow_terminal_has_no_bar() -> None:
    found = rows([after_a_loss()], NOW, 20)
    assert "LAST HOUR" in drawn(120, 40, found)[2]
    narrow = drawn(80, 24, found)
    assert narrow[2].split()[-1] == "GOODPUT"
    assert "research   mnist  Training  2/2      2      1         2000  2.4      97 %" in narrow


@pytest.mark.usefixtures("server")
def test_without_a_terminal_it_says_what_to_use(run: Callable[..., Result]) -> None:
    refused = run("top", "mnist")
    assert "use `elasticjob status mnist`, or -o json" in str(refused.exception)
    items = json.loads(run("top", "-o", "json").stdout)["items"]
    assert [(row["job"]["name"], len(row["rounds"])) for row in items] == [("mnist", 20)]
    found = json.loads(run("top", "mnist", "-o", "json").stdout)
    assert (found["status"]["state"], found["stepsPerSecond"]) == ("Training", pytest.approx(1000 / 412))
    assert run("top", "mnist", "-A").exit_code == 2


def test_slices_of_time_show_the_worst_that_happened_in_them() -> None:
    lost = after_a_loss()
    shown = timeline(lost, NOW - timedelta(seconds=3600), NOW, 60)
    assert shown[:20] == [Slice.BEFORE] * 20  # the first round began 2400 s ago
    assert shown[20:] == [*[Slice.TRAINING] * 38, Slice.LOSS, Slice.TRAINING]
    assert span(lost, NOW) == (NOW - timedelta(seconds=2400), NOW)
    found = body()
    found["status"]["roundHistory"][1]["end"].update(cause="ScaledUp", account="scaling")
    grown = ElasticJob.from_dict(found)
    assert timeline(grown, NOW - timedelta(seconds=240), NOW, 4) == [Slice.TRAINING] * 4


def ended(number: int, slot: int, cause: str, account: str = "") -> Round:
    """It ended in this slice of 20, of ten seconds each."""
    time = NOW - timedelta(seconds=200 - 10 * slot - 5)
    return Round(number=number, end=RoundEnd(time=time, cause=cause, account=account))


def test_causes_of_ends_stand_below_the_bar_where_there_is_room() -> None:
    begin = NOW - timedelta(seconds=200)
    lost = ended(1, 2, "PodLost", "infrastructure")

    def below(*rounds: Round) -> str:
        return captions([Round(number=9), *rounds], begin, NOW, 20)

    assert below() == ""
    assert below(lost) == "  └PodLost"
    assert below(ended(2, 11, "ScaledUp"), lost) == "  └PodLost └ScaledUp"
    assert below(ended(2, 19, "ScaledUp"), lost) == "  └PodLost ScaledUp┘"
    assert below(ended(2, 9, "ScaledUp"), lost) == "  └PodLost", "a loss comes before a planned change"
    newer = ended(2, 9, "PodDeleted", "preemption")
    assert below(newer, lost) == "         └PodDeleted", "and the newer of two losses before the older"
    assert below(ended(1, 25, "PodLost"), ended(1, -3, "PodLost")) == "", "of another time"


def test_no_round_runs_while_a_job_waits_and_after_its_end() -> None:
    found = body()
    del found["status"]["roundHistory"][0]
    waiting = ElasticJob.from_dict(found)
    shown = timeline(waiting, NOW - timedelta(seconds=240), NOW, 4)
    assert shown == [Slice.TRAINING, Slice.TRAINING, Slice.LOSS, Slice.BETWEEN]
    found["status"]["completionTime"] = (NOW - timedelta(seconds=60)).isoformat()
    ended = ElasticJob.from_dict(found)
    assert timeline(ended, NOW - timedelta(seconds=240), NOW, 4)[3] == Slice.BEFORE
    assert span(ended, NOW) == (NOW - timedelta(seconds=2400), NOW - timedelta(seconds=60))
    assert span(job(None), NOW) is None
    with pytest.raises(ValueError, match="nothing to show"):
        timeline(ended, NOW, NOW, 4)


def test_jobs_that_may_need_a_look_come_first() -> None:
    trains = after_a_loss()
    stuck = job({"conditions": conditions("WaitingForFencing", "node b is silent")})
    waits = job({"conditions": conditions("WaitingForPods", "2 pods are Pending")})
    assert [row.job.state for row in rows([trains, waits, stuck], NOW, 4)] == [
        "WaitingForFencing",
        "WaitingForPods",
        "Training",
    ]
    assert steps_per_second(trains) == pytest.approx(1000 / 412)
    assert steps_per_second(waits) is None
