"""Runs the scenario files: one file per race, its decisions side by side with what happens.

A line that begins with ``>`` is a command, what follows is the planner's trace. To write the traces
anew (and then to read every one of them): ``REWRITE=1 pytest tests/scenarios``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.world import World

FILES = sorted((Path(__file__).parent / "races").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text()
    actual = run(expected)
    if os.environ.get("REWRITE"):
        path.write_text(actual)
    assert actual == expected


def run(text: str) -> str:
    world = World()
    lines = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            lines.append(line)
        elif line.startswith("> "):
            lines.append(line)
            world.trace.clear()
            world.play(line[2:])
            lines.extend(f"    {said}" for said in world.trace)
    return "\n".join(lines) + "\n"
