"""A duration is a number of seconds: what is none is refused before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from tests.unit.client.clients import BOTH
from tests.unit.client.server import Server


@pytest.mark.parametrize("client", BOTH)
def test_a_wait_is_not_for_ever_by_mistake(server: Server, client: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="timeout_seconds is nan: expected a number of seconds"):
        client(lambda jobs: jobs.wait("mnist", timeout_seconds=float("nan")), [], [])
    assert not server.asked


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1"])
@pytest.mark.parametrize(
    "words", [("drill", "mnist", "--kill", "rank:0", "--yes", "--timeout"), ("top", "--interval")]
)
def test_what_is_no_duration_is_refused(
    server: Server, run: Callable[..., Result], words: tuple[str, ...], seconds: str
) -> None:
    found = run(*words, seconds)
    assert found.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in found.stderr
    assert not server.asked
