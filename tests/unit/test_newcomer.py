"""When a torchrun announces itself for the first time."""

from __future__ import annotations

import re
import threading
import time

import pytest

from elasticjob.api.errors import Forbidden
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Participant
from elasticjob.warm.newcomer import (
    RECORD_SECONDS,
    WARM_SECONDS,
    announces_later,
    has_no_lease,
    wait_until_warm,
)
from tests.unit.memory_api import Leases, MemoryApi


def record(phase: str, number: int = 1) -> RoundRecord:
    return RoundRecord("uid", number, phase, "n", ("other",), "h:1")


@pytest.mark.parametrize(
    ("phase", "waited", "warming", "later"),
    [
        ("Active", 0.0, True, True),
        ("Active", WARM_SECONDS - 1, True, True),
        ("Active", WARM_SECONDS, True, False),
        ("Active", 0.0, False, False),
        ("Draining", 0.0, True, False),
        ("Broken", 0.0, True, False),
        ("Closed", 0.0, True, False),
        ("Unknown", 0.0, True, False),
        (None, 0.0, True, True),
        (None, RECORD_SECONDS, True, False),
        (None, 0.0, False, False),
    ],
)
def test_it_waits_only_where_others_train(
    phase: str | None, waited: float, warming: bool, later: bool
) -> None:
    assert announces_later(None if phase is None else record(phase), waited, warming) is later


def test_no_longer_than_it_may() -> None:
    assert announces_later(record("Active"), 0.9, True, 1.0)
    assert not announces_later(record("Active"), 1.0, True, 1.0)
    assert not announces_later(None, 1.0, True, 1.0)


class Waiting:
    """``wait_until_warm`` in a thread of its own."""

    def __init__(self, *seen: RoundRecord, is_new: bool = True, limit: float = 60.0) -> None:
        self.core, self.changed = Participant(), threading.Condition()
        self.warming, self.asked = True, 0
        self._is_new = is_new
        for one in seen:
            self.core.observe(one)
        self._thread = threading.Thread(
            target=wait_until_warm,
            args=(self.core, self.changed, lambda: self.warming, self._ask, limit),
            daemon=True,
        )
        self._thread.start()

    def _ask(self) -> bool:
        self.asked += 1
        return self._is_new

    def see(self, one: RoundRecord) -> None:
        with self.changed:
            self.core.observe(one)
            self.changed.notify_all()

    def waits(self) -> bool:
        time.sleep(0.3)
        return self._thread.is_alive()

    def ends(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()


def test_it_announces_itself_when_its_interpreters_are_ready(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "elasticjob")
    waiting = Waiting(record("Active"))
    assert waiting.waits()
    waiting.warming = False
    assert waiting.ends()
    assert waiting.asked == 1
    assert "others train: this pod announces itself when its warm interpreters are ready" in caplog.text
    assert "announced after" in caplog.text
    assert "not ready yet" not in caplog.text


def test_it_announces_itself_as_soon_as_others_wait() -> None:
    waiting = Waiting(record("Active"))
    assert waiting.waits()
    waiting.see(record("Broken"))
    assert waiting.ends()


def test_it_announces_itself_at_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "elasticjob")
    assert Waiting(record("Active"), limit=0.5).ends()
    assert re.search(r"announced after \d+\.\d s: they are not ready yet", caplog.text)


def test_another_torchrun_of_the_same_pod_does_not_wait() -> None:
    waiting = Waiting(record("Active"), is_new=False)
    assert waiting.ends()
    assert waiting.warming


def test_whether_the_pod_has_announced_itself_before() -> None:
    leases = Leases()
    api = MemoryApi(leases)
    assert has_no_lease(api, "a")
    leases.put("a", {})
    assert not has_no_lease(api, "a")
    leases.error = Forbidden("no", 403)
    assert not has_no_lease(api, "b"), "at once, if it cannot be learnt"
