"""The work queue: a key is worked on once however often it was added, and never twice at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

from elasticjob_operator.controller.queue import WorkQueue


class PlayedTimer:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at, self.callback, self.cancelled = at, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Scene:
    """A queue that is open, and whose time is the test's. ``ready`` are the keys that it has called out."""

    def __init__(self, jitter: float = 1.0) -> None:
        self.now = 100.0
        self.timers: list[PlayedTimer] = []
        self.ready: list[str] = []
        self.queue: WorkQueue[str] = WorkQueue(
            lambda: self.now, self._call_later, self.ready.append, jitter=lambda: jitter
        )
        self.queue.open()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> PlayedTimer:
        self.timers.append(PlayedTimer(self.now + seconds, callback))
        return self.timers[-1]

    def pending(self) -> list[PlayedTimer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [timer for timer in self.pending() if timer.at <= until]:
            timer = min(due, key=lambda timer: timer.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.callback()
        self.now = until

    def work(self, key: str, fails: bool = False, at_least: float = 0.0) -> bool:
        """Do the work on a key that is ready. Returns whether there was news."""
        work = self.queue.get(key)
        assert work is not None, f"{key} is ready"
        if fails:
            self.queue.add_rate_limited(key, at_least)
        else:
            self.queue.forget(key)
        self.queue.done(key)
        return work.news

    def seconds_until_ready(self, key: str) -> float:
        """As time passes by."""
        self.ready.clear()
        began = self.now
        while key not in self.ready:
            left = min((timer.at for timer in self.pending()), default=math.inf) - self.now
            assert left < math.inf, f"{key} is never ready"
            self.pass_time(left)
        return round(self.now - began, 6)


def test_a_key_that_is_added_often_is_worked_on_once() -> None:
    scene = Scene()
    for key in ("a", "b", "a", "a"):
        scene.queue.add(key)
    assert scene.ready == ["a", "b"]
    assert scene.work("a")
    assert scene.queue.get("a") is None
    scene.pass_time(1_000)
    assert scene.ready == ["a", "b"]


def test_a_key_that_is_added_during_its_work_is_ready_when_that_is_done() -> None:
    scene = Scene()
    scene.queue.add("a")
    assert scene.queue.get("a") is not None
    assert dict(scene.queue.working) == {"a": 100.0}
    scene.queue.add("a")
    scene.queue.add("a")
    assert scene.ready == ["a"]
    assert scene.queue.get("a") is None, "never twice at a time"
    scene.queue.done("a")
    assert scene.ready == ["a", "a"]
    assert not scene.queue.working
    assert scene.work("a")
    assert scene.ready == ["a", "a"]


def test_the_earliest_of_the_times_counts_and_work_makes_them_void() -> None:
    scene = Scene()
    for seconds in (30.0, 10.0, 20.0):
        scene.queue.add_after("a", seconds)
    assert len(scene.pending()) == 1
    assert scene.seconds_until_ready("a") == 10.0
    assert not scene.work("a"), "that time has passed is no news"
    assert not scene.pending()
    scene.queue.add_after("a", 30.0)
    scene.queue.add("a")
    assert scene.work("a")
    assert not scene.pending()


def test_what_has_to_be_done_at_a_time_is_asked_for_during_the_work() -> None:
    scene = Scene()
    scene.queue.add("a")
    assert scene.queue.get("a") is not None
    scene.queue.add_after("a", 5.0)
    scene.pass_time(2.0)
    assert not scene.pending()
    scene.queue.done("a")
    assert scene.seconds_until_ready("a") == 3.0


def test_no_delay_is_so_short_that_the_work_would_spin() -> None:
    scene = Scene()
    scene.queue.add_after("a", -1.0)
    assert scene.seconds_until_ready("a") == 0.005


def test_failures_are_tried_again_less_and_less_often_until_one_succeeds() -> None:
    scene = Scene()
    scene.queue.add("a")
    pauses = []
    for failures in range(10):
        assert scene.queue.failures("a") == failures
        assert scene.work("a", fails=True) == (failures == 0)
        pauses.append(scene.seconds_until_ready("a"))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    scene.work("a")
    assert scene.queue.failures("a") == 0
    scene.queue.add("a")
    scene.work("a", fails=True)
    assert scene.seconds_until_ready("a") == 0.2


def test_the_server_says_how_long_to_wait_at_least() -> None:
    scene = Scene()
    scene.queue.add("a")
    scene.work("a", fails=True, at_least=7.0)
    scene.queue.add("a")
    assert scene.seconds_until_ready("a") == 7.0, "news is no exception"


def test_news_shortens_the_wait_after_a_failure_to_a_second() -> None:
    scene = Scene()
    scene.queue.add("a")
    for _ in range(6):
        scene.work("a", fails=True)
        scene.pass_time(30.0)
    scene.work("a", fails=True)
    scene.pass_time(0.25)
    scene.queue.add("a")
    scene.queue.add("a")
    assert scene.seconds_until_ready("a") == 0.75
    assert scene.work("a", fails=True)
    scene.pass_time(5.0)
    scene.ready.clear()
    scene.queue.add("a")
    assert scene.ready == ["a"], "it has waited long enough"


def test_news_that_came_during_work_that_failed_does_not_shorten_the_wait() -> None:
    scene = Scene()
    scene.queue.add("a")
    for _ in range(6):
        scene.work("a", fails=True)
        scene.pass_time(30.0)
    assert scene.queue.get("a") is not None
    scene.queue.add("a")
    scene.queue.add_rate_limited("a")
    scene.queue.done("a")
    assert scene.seconds_until_ready("a") == 12.8
    assert scene.work("a"), "and is still news"


def test_news_that_came_during_work_that_succeeded_does_not_wait_for_an_earlier_failure() -> None:
    scene = Scene(jitter=0.5)
    scene.queue.add("a")
    scene.work("a", fails=True)
    assert scene.seconds_until_ready("a") == 0.1
    assert scene.queue.get("a") is not None
    scene.queue.add("a")
    scene.queue.forget("a")
    scene.queue.done("a")
    assert scene.ready == ["a", "a"]


def test_a_key_rests_after_costly_work_whatever_the_news() -> None:
    scene = Scene()
    scene.queue.add("a")
    assert scene.queue.get("a") is not None
    scene.queue.add("a")
    scene.queue.done("a", rest_until=scene.now + 3.0)
    scene.pass_time(1.0)
    scene.queue.add("a")
    assert scene.seconds_until_ready("a") == 2.0
    assert scene.work("a")


def test_a_key_that_is_gone_needs_no_work() -> None:
    scene = Scene()
    for key in ("ready", "later", "working"):
        scene.queue.add(key)
    scene.work("later")
    scene.queue.add_after("later", 5.0)
    assert scene.queue.get("working") is not None
    scene.queue.add("working")
    for key in ("ready", "later", "working"):
        scene.queue.discard(key)
    assert scene.queue.get("ready") is None
    assert not scene.pending()
    scene.queue.done("working")
    assert scene.ready == ["ready", "later", "working"]


def test_a_key_that_comes_back_during_work_on_its_former_self_waits_for_the_end_of_that() -> None:
    scene = Scene()
    scene.queue.add("a")
    assert scene.queue.get("a") is not None
    scene.queue.discard("a")
    scene.queue.add("a")
    assert scene.ready == ["a"]
    scene.queue.done("a")
    assert scene.ready == ["a", "a"]


def test_a_queue_that_is_closed_takes_nothing_and_has_forgotten_everything() -> None:
    scene = Scene()
    scene.queue.add("failed")
    scene.work("failed", fails=True)
    scene.queue.add("working")
    assert scene.queue.get("working") is not None
    scene.queue.add("ready")
    scene.queue.close()
    assert not scene.queue.working
    scene.queue.add_rate_limited("working")
    scene.queue.done("working")
    for add in (scene.queue.add, lambda key: scene.queue.add_after(key, 1.0)):
        add("new")
    scene.pass_time(100.0)
    assert scene.ready == ["failed", "working", "ready"]
    assert scene.queue.get("ready") is None
    assert not scene.queue.working
    scene.queue.open()
    scene.queue.add("failed")
    scene.work("failed", fails=True)
    assert scene.seconds_until_ready("failed") == 0.2, "counted from 0"


def test_how_long_the_key_has_needed_work_that_has_needed_it_longest() -> None:
    scene = Scene()
    assert (scene.queue.depth, scene.queue.oldest_seconds()) == (0, 0)
    scene.queue.add("a")
    scene.queue.add_after("b", 5)
    scene.pass_time(3)
    assert (scene.queue.depth, scene.queue.oldest_seconds()) == (1, 3), "b is not due yet"
    scene.pass_time(3)
    assert (scene.queue.depth, scene.queue.oldest_seconds()) == (2, 6)
    scene.work("a", fails=True)
    assert (scene.queue.depth, scene.queue.oldest_seconds()) == (1, 6), "what has failed is not done"
    scene.pass_time(1)
    scene.work("a")
    assert scene.queue.oldest_seconds() == 2, "b was due at 5"
    assert scene.queue.get("b") is not None
    scene.pass_time(4)
    assert scene.queue.oldest_seconds() == 6, "work that is under way is not done"
    scene.queue.add("b")
    scene.pass_time(1)
    scene.queue.done("b")
    assert scene.queue.oldest_seconds() == 1, "news that came meanwhile"
    scene.work("b")
    assert (scene.queue.depth, scene.queue.oldest_seconds()) == (0, 0)
