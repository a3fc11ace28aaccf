"""Whether a browser has drawn what a page of ``report`` says: by the pixels where its elements are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from elasticjob_client.cli.page import PALE
from tests.screens.browser import Page

_ELEMENTS = """(() => {
  const box = element => {
    const found = element.getBoundingClientRect();
    return [found.left, found.top + scrollY, found.right, found.bottom + scrollY];
  };
  const line = document.querySelector("polyline");
  const points = line ? [...Array(50).keys()].map(n => {
    const at = line.getPointAtLength(line.getTotalLength() * n / 49).matrixTransform(line.getScreenCTM());
    return [at.x, at.y + scrollY];
  }) : [];
  return {
    width: document.documentElement.clientWidth,
    bars: [...document.querySelectorAll("rect")].map(bar => ({
      fill: bar.getAttribute("fill"),
      box: box(bar),
      pale: (part => part && box(part))(bar.parentElement.querySelector("path")),
      title: bar.parentElement.querySelector("title").textContent,
      label: (bar.parentElement.querySelector("text") || {}).textContent || "",
    })),
    texts: [...document.querySelectorAll("h1, h2, p, th, td, text")].filter(one => one.textContent.trim())
      .map(one => ({text: one.textContent, box: box(one), drawing: one.tagName == "text"})),
    line: line ? line.getAttribute("stroke") : "",
    points: points,
  };
})()"""
_NEAR = 40
"""By how much a colour may differ in red, green and blue: lines have soft edges."""


@dataclass(frozen=True)
class Drawn:
    """Bars with label and width, and all texts of the page."""

    bars: list[tuple[str, float]]
    texts: list[str]


def assert_drawn(page: Page, file: Path) -> Drawn:
    """All bars in their colours, all texts, the curve of steps; nothing was fetched but the file, and nothing
    was written to the console."""
    assert page.requests == [file.as_uri()]
    assert page.noted == []
    found: dict[str, Any] = page.evaluate(_ELEMENTS)
    pixels = page.picture().astype(int)
    assert found["bars"]
    for bar in found["bars"]:
        left, top, right, _ = bar["box"]
        # Where neither its white edge nor its label is.
        x, white = (left + right) / 2, 0.0
        if bar["pale"]:
            middle = bar["pale"][2]
            x, white = max(
                ((left + middle) / 2, PALE),
                ((middle + right) / 2, 0.0),
                key=lambda part: abs(part[0] - middle),
            )
        assert _near(pixels, x, top + 3, _paler(bar["fill"], white)), bar
        assert bar["title"], bar
    for text in found["texts"]:
        left, top, right, bottom = text["box"]
        assert left >= 0, text
        assert right <= found["width"], text
        inside = pixels[int(top) : int(bottom) + 1, int(left) : int(right) + 1]
        assert numpy.ptp(inside, axis=(0, 1)).max() > 2 * _NEAR, f"nothing is written there: {text}"
    drawings = [text for text in found["texts"] if text["drawing"]]
    for n, one in enumerate(drawings):
        for other in drawings[:n]:
            assert not _overlap(one["box"], other["box"]), (one, other)
    missing = [point for point in found["points"] if not _near(pixels, point[0], point[1], found["line"])]
    assert found["points"], "there is no curve"
    assert missing == []
    bars = [(bar["label"], bar["box"][2] - bar["box"][0]) for bar in found["bars"]]
    return Drawn(bars, [text["text"] for text in found["texts"]])


def _paler(colour: str, white: float) -> str:
    return "#" + "".join(f"{round(part + white * (255 - part)):02x}" for part in bytes.fromhex(colour[1:]))


def _near(pixels: numpy.ndarray[Any, Any], x: float, y: float, colour: str) -> bool:
    """Whether a pixel there, or beside it, has this colour."""
    wanted = numpy.array(list(bytes.fromhex(colour[1:])))
    around = pixels[max(0, int(y) - 1) : int(y) + 2, max(0, int(x) - 1) : int(x) + 2]
    return bool((abs(around - wanted).max(axis=2) <= _NEAR).any())


def _overlap(one: list[float], other: list[float]) -> bool:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return across > 1 and down > 4  # boxes of lines are taller than their letters
