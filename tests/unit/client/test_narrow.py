"""A narrow terminal: names stay whole, lines run over."""

from __future__ import annotations

import pytest
from rich.console import Console, RenderableType

from elasticjob_client.cli import screen
from elasticjob_client.cli.columns import Columns
from elasticjob_client.events import Event
from elasticjob_client.explain import listing, status, why
from tests.unit.client.made import NOW, after_a_loss, pod

POD = "a-job-with-a-rather-long-name-for-tests-0-0"


def drawn(found: RenderableType, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(screen, "console", lambda: console)
    with console.capture() as captured:
        screen.show(found)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [20, 40, 60])
def test_no_name_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = screen.status(status.status(after_a_loss(), [pod(POD)], NOW))
    lines = drawn(found, width, monkeypatch)
    assert f"-           {POD}  a     Running  -" in lines
    head, row = drawn(screen.listing([listing.row(after_a_loss(), NOW)], True), width, monkeypatch)
    assert row.split()[:3] == ["research", "mnist", "Training"]
    assert row[head.index("AGE") :] == "42m", "nothing is left out"
    assert not row.endswith(" ")


def test_the_last_column_wraps_in_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [Event(reason="RoundBroken", object=f"pod/{POD}", message="word " * 20)]
    for width, wide in ((120, 120), (40, 5 + 13 + 49 + 26)):
        lines = drawn(screen.events(said, NOW, True), width, monkeypatch)
        assert f"pod/{POD}" in lines[1]
        assert max(map(len, lines)) <= wide
        assert len(lines) > 2


def test_lines_of_a_log_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ["ValueError: " + "x" * 100, "a b " * 30]
    job = after_a_loss()
    failed = pod("mnist-1-0", "Failed")
    lines = drawn(screen.story(why.why(job, [failed], log, NOW)), 40, monkeypatch)
    assert lines[-2:] == [f"  {line}" for line in log]
    assert max(map(len, lines[:-2])) <= 40, "sentences are"


def test_rows_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(Columns(["A", "B"], [["1", ""], ["", "2"]]), 4, monkeypatch) == ["A  B", "1", "   2"]
