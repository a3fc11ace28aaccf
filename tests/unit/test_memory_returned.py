"""What many jobs have taken goes back to the machine after they were deleted."""

from __future__ import annotations

import json
import subprocess
import sys

from elasticjob_operator.observe.recent import MOST, Recent

_AT_MOST = 1.3
"""Of what the process had before. What interpreter and libraries had then is a third of an operator's."""


def test_memory_goes_back_when_jobs_were_deleted() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.unit.memory_cycle"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    before, highest, after = json.loads(answer.stdout)
    assert highest > 1.5 * before, "so many jobs take much"
    assert after < _AT_MOST * before, (before, highest, after)


def test_what_was_removed_is_remembered_for_a_while() -> None:
    recent = Recent()
    recent.add("a", 7)
    recent.age()
    recent.add("b")
    assert "a" in recent
    assert recent.version("a") == 7
    assert recent.version("b") == float("inf")
    recent.age()
    assert "a" not in recent
    assert recent.version("a") == float("-inf")
    recent.forget("b")
    assert not len(recent)


def test_the_latest_of_many_are_remembered() -> None:
    recent = Recent()
    for number in range(3 * MOST):
        recent.add(str(number))
    assert MOST <= len(recent) <= 2 * MOST
    assert all(str(number) in recent for number in range(2 * MOST, 3 * MOST))
