"""Agents that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.memory.agents import Pod


@pytest.fixture
def pods() -> Iterator[Callable[..., Pod]]:
    """Makes agents."""
    made: list[Pod] = []

    def make(**settings: Any) -> Pod:
        made.append(Pod(**settings))
        return made[-1]

    yield make
    for pod in made:
        pod.close()
