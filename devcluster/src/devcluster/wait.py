"""Waiting for a condition, with a deadline: the alternative to sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    predicate: Callable[[], T | None],
    timeout: float,
    message: str | Callable[[], str],
    interval: float = 0.05,
) -> T:
    """Call `predicate` until it returns something true, and return that.

    What the predicate raises passes through: a condition that "is not there yet" must be told by a false
    value. `message` says what was waited for; give a function when what was found last belongs in it.
    `timeout` and `interval` are seconds.

    Raises TimeoutError after `timeout`; the predicate is called at least once, and once more at the end.
    """
    deadline = time.monotonic() + timeout
    while True:
        last_try = time.monotonic() >= deadline
        if result := predicate():
            return result
        if last_try:
            text = message if isinstance(message, str) else message()
            raise TimeoutError(f"not within {timeout:g} s: {text}")
        time.sleep(interval)
