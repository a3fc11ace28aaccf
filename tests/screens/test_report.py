"""The page of ``report`` in a browser: what it draws, what it asks for, what it writes to the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticjob_client.cli.page import page
from elasticjob_client.explain.report import report
from tests.screens.browser import opened
from tests.screens.drawn import assert_drawn
from tests.unit.client.made import NOW, after_a_loss
from tests.unit.client.test_report import PODS


def test_bars_texts_and_the_curve_are_drawn_and_nothing_is_fetched(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(report(after_a_loss(), PODS, NOW)))
    with opened(file, tmp_path / "browser.log") as shown:
        drawn = assert_drawn(shown, file)
        # The last one has run for 119 s of 2450: too narrow for its name.
        assert [label for label, _ in drawn.bars] == ["1", "2", "mnist-0-0", "mnist-1-0", ""]
        assert drawn.bars[0][1] / drawn.bars[1][1] == pytest.approx(2280 / 118, rel=0.05)
        assert {"rounds", "slot 0", "slot 1", "2000"} <= set(drawn.texts)
        tables = shown.evaluate("[...document.querySelectorAll('table')].map(table => table.innerText)")
    assert "PodLost" in tables[0]
    assert "b\t1" in tables[1]
    assert "was lost: its container ended with SIGKILL" in tables[2]


@pytest.mark.parametrize("text", ["<img src=x onerror=console.log(1)>", "<script>console.log(1)</script>"])
def test_what_a_job_says_is_not_run(tmp_path: Path, text: str) -> None:
    history: list[dict[str, Any]] = [
        {"number": 1, "startTime": "2026-05-04T11:00:00Z", "cause": text, "firstStep": 1, "lastStep": 9}
    ]
    file = tmp_path / "report.html"
    file.write_text(page(report(after_a_loss(roundHistory=history), PODS, NOW)))
    with opened(file, tmp_path / "browser.log") as shown:
        assert_drawn(shown, file)
        assert shown.evaluate("document.scripts.length + document.images.length") == 0
        assert text in shown.evaluate("document.body.innerText")


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("<rect ", '<rect visibility="hidden" '),
        ("<text ", '<text visibility="hidden" '),
        ("<polyline ", '<polyline visibility="hidden" '),
        ("</body>", '<img src="data.png"></body>'),
        ("</body>", "<script>console.log(1)</script></body>"),
    ],
)
def test_the_check_notices_what_is_not_right(tmp_path: Path, text: str, instead: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(report(after_a_loss(), PODS, NOW)).replace(text, instead))
    with opened(file, tmp_path / "browser.log") as shown, pytest.raises(AssertionError):
        assert_drawn(shown, file)
