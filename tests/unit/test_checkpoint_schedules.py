"""Some histories of a directory of checkpoints; ``make histories-checkpoints`` plays 10,000."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticjob.checkpoint import ownership, retention
from elasticjob.checkpoint.directory import Directory
from tests.checkpoints.history import Broken, play


@pytest.mark.parametrize("seed", range(0, 100, 25))
def test_nothing_saved_is_lost_whatever_happens(seed: int) -> None:
    play_all(seed, 25)


@pytest.mark.parametrize("seed", [5014, 7416])
def test_what_a_later_round_has_counted_and_removed_was_saved(seed: int) -> None:
    play(seed)


def test_a_round_that_stands_still_does_not_take_for_nothing_what_later_ones_have_removed() -> None:
    """It had seen the checkpoint, and reads its marker 114 s later."""
    play(42295)


def play_all(seed: int, number: int) -> None:
    for each in range(seed, seed + number):
        play(each)


def removes_what_other_jobs_have_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "_removable", lambda *_: frozenset(range(100)))


def does_not_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "rival", lambda *_: None)


def does_not_look_again_after_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = ownership.superseded_by
    complete: Any = Directory.complete

    def careless(self: Any, *args: Any) -> None:
        monkeypatch.setattr(ownership, "superseded_by", lambda *_: None)
        try:
            complete(self, *args)
        finally:
            monkeypatch.setattr(ownership, "superseded_by", real)

    monkeypatch.setattr(Directory, "complete", careless)


def removes_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "never_counts", lambda *_: [])


def renews_with_what_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    beat: Any = Directory.beat

    def careless(self: Any) -> bool:
        renewed: list[bool] = []
        self._with_room(lambda: renewed.append(beat(self)))
        return renewed[-1]

    monkeypatch.setattr(Directory, "beat", careless)


def renews_nothing_while_it_tidies(monkeypatch: pytest.MonkeyPatch) -> None:
    begin: Any = Directory.begin
    tidy: Any = Directory.tidy

    def slow(self: Any, *args: Any) -> Any:
        begin(self, *args)
        tidy(self)
        return self.claim

    monkeypatch.setattr(Directory, "begin", slow)
    monkeypatch.setattr(Directory, "tidy", lambda _: None)


def removes_what_has_failed_whatever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "failed", lambda self, name: self._remove(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "rule"),
    [
        (removes_what_other_jobs_have_completed, "Saved"),
        (does_not_watch, "Alone"),
        (does_not_look_again_after_the_marker, "Fenced|Saved"),
        (removes_nothing_half_written, "Recovers"),
        (renews_with_what_is_set_aside, "Recovers"),
        (renews_nothing_while_it_tidies, "Alone"),
        (removes_what_has_failed_whatever_is_there, "Saved|Undisturbed"),
    ],
    ids=lambda item: getattr(item, "__name__", item),
)
def test_a_mistake_is_found(
    mutation: Callable[[pytest.MonkeyPatch], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Broken, match=rf"seed \d+: ({rule}):"):
        play_all(0, 1000)
