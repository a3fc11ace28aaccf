"""Which lines of which pods are shown, and how they are followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from elasticjob_client.explain.lines import Line, Reader, Window, chosen, in_time, window
from elasticjob_client.following import Log, OpenLogs
from elasticjob_client.on_threads import Follower
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from tests.unit.client.made import NOW, after_a_loss, ago, job, member, pod


def at(seconds: float, text: str, name: str = "mnist-0-0") -> Line:
    return Line(pod=name, text=text, time=NOW + timedelta(seconds=seconds))


def test_lines_of_several_pods_are_in_the_order_of_their_times() -> None:
    first = [at(1, "a"), Line(pod="mnist-0-0", text="(without a time)"), at(4, "d")]
    second = [at(2, "b", "mnist-1-0"), at(3, "c", "mnist-1-0")]
    found = [one.text for one in in_time([first, second], Window())]
    assert found == ["a", "(without a time)", "b", "c", "d"]


def test_lines_outside_of_the_window_are_left_out() -> None:
    shown = Window(NOW + timedelta(seconds=2), NOW + timedelta(seconds=3))
    assert [one.text for one in in_time([[at(1, "a"), at(2, "b"), at(3, "c"), at(4, "d")]], shown)] == [
        "b",
        "c",
    ]


def test_times_of_the_kubelet_are_read() -> None:
    read = Reader("p", with_times=True)
    assert read.line("unable to retrieve", None).time is None
    found = read.line("2026-05-04T12:00:00.123456789Z step 1", 0)
    assert (found.text, found.time and found.time.microsecond) == ("step 1", 123457)


def test_a_line_without_a_time_is_of_that_of_the_line_before() -> None:
    read = Reader("p", with_times=True)
    before, found = read.line("2026-05-04T12:00:00Z step 1", 0), read.line("unable to retrieve", 0)
    assert (found.text, found.time) == ("unable to retrieve", before.time)
    assert Reader("p", with_times=False).line("2026-05-04T12:00:00Z step 1", 0).time is None


def test_a_round_is_a_time() -> None:
    """It ends when the next begins, or five seconds after its end if that is sooner."""
    found = window(after_a_loss(), 1)
    assert found == Window(NOW - timedelta(seconds=2400), NOW - timedelta(seconds=118))
    rounds = [{"number": 2, "startTime": ago(100)}, {"number": 1, "end": {"time": ago(120)}}]
    assert window(job({"roundHistory": rounds}), 1).until == NOW - timedelta(seconds=115)
    assert window(after_a_loss(), 2).until is None
    with pytest.raises(ValueError, match="round 7 is not in the status of mnist, which has 1 to 2"):
        window(after_a_loss(), 7)


def test_a_failure_is_shown_with_what_led_to_it() -> None:
    assert window(after_a_loss(), since_failure=True).since == NOW - timedelta(seconds=150)
    with pytest.raises(ValueError, match="mnist has had no failure"):
        window(job({}), since_failure=True)


def test_pods_without_a_container_have_no_log() -> None:
    pods = [pod("mnist-0-0", started=NOW), pod("mnist-1-0", ended=NOW), pod("mnist-1-1")]
    assert [one.name for one in chosen(after_a_loss(), pods, None)] == ["mnist-0-0", "mnist-1-0"]


class Played:
    """A job that is replaced a pod and then ends; each look is a later state."""

    def __init__(self) -> None:
        over = after_a_loss(terminalState="Complete")
        self.states = [
            (after_a_loss(), [pod("mnist-1-0", started=NOW)]),
            (after_a_loss(), [pod("mnist-1-0", started=NOW), pod("mnist-1-1", started=NOW)]),
            (over, [pod("mnist-1-0", started=NOW, ended=NOW), pod("mnist-1-1", started=NOW, ended=NOW)]),
        ]
        self.read_by: list[str] = []
        self.lock = threading.Lock()

    def look(self) -> tuple[ElasticJob, list[Pod]]:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def read(self, log: Log) -> Iterator[Line]:
        name = log.pod.name
        with self.lock:
            self.read_by.append(name)
        yield Line(pod=name, text=f"from {name}", rank=log.rank)


def test_a_log_is_followed_through_the_pods_of_its_rank_and_each_is_read_once() -> None:
    played = Played()
    found = list(Follower(played.look, played.read, OpenLogs(1, None, None, print), print).lines())
    assert [(one.text, one.rank) for one in found] == [("from mnist-1-0", 1), ("from mnist-1-1", 1)]
    assert played.read_by == ["mnist-1-0", "mnist-1-1"]


def test_a_pod_that_joins_later_has_its_rank_from_then_on() -> None:
    begun = OpenLogs(None, None, None, print)
    pods = [pod("mnist-1-0", started=NOW), pod("mnist-1-1", started=NOW)]
    before = after_a_loss(participants=[member(0, "mnist-0-0"), member(1, "mnist-1-0")])
    lost, joins = begun.to_read(before, pods)
    assert (lost.rank, joins.rank) == (1, None)
    assert begun.to_read(after_a_loss(), pods) == []
    assert (lost.rank, joins.rank) == (None, 1)


def test_a_pod_that_ended_before_is_not_followed() -> None:
    since: datetime = NOW + timedelta(seconds=1)
    played = Played()
    played.states = played.states[2:]
    assert list(Follower(played.look, played.read, OpenLogs(None, since, None, print), print).lines()) == []
