"""What a coordinator reads of the times at which Leases were made: all are by the API server's clock."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.coordination.directory import Seen
from elasticjob.coordination.reading import older_than

MADE = "2026-01-01T00:10:00Z"


def made(**times: Any) -> dict[str, Seen]:
    return {name: Seen({"metadata": {"creationTimestamp": time}}, 0.0) for name, time in times.items()}


def test_a_lease_is_older_if_it_was_made_more_than_a_second_before() -> None:
    leases = made(before="2026-01-01T00:09:58Z", about="2026-01-01T00:09:59Z", after="2026-01-01T00:10:07Z")
    assert older_than(MADE, leases) == {"before"}


@pytest.mark.parametrize("time", [None, "", "yesterday", 7])
def test_times_that_cannot_be_read_say_nothing(time: object) -> None:
    assert older_than(MADE, made(one=time)) == frozenset()
    assert older_than(str(time), made(one="2026-01-01T00:09:58Z")) == frozenset()
