"""The operator says that a leader's limit of open files will not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob.contract.fields import MAX_INT32
from tests.scenarios.world import World

SENTENCE = (
    "the leader mnist-0-0 may open 1024 files, but 100 members with 800 workers need about 1064: raise the"
    " container's hard limit (LimitNOFILE of the container runtime, or ulimit -n)"
)


def running(open_files: int, size: int | None = 8) -> World:
    """Two members train; the leader may open so many files."""
    w = World().play("job replicas=2", "start mnist-0-0 mnist-1-0")
    say(w, open_files, size)
    w.play("establish")
    return w


def say(w: World, open_files: int, size: int | None) -> None:
    lease = w.leases["mnist-0-0"]
    assert lease.record is not None
    w.leases["mnist-0-0"] = replace(
        lease, record=replace(lease.record, open_files=open_files, local_world_size=size)
    )


def scale(w: World, replicas: int) -> list[str]:
    """What is said when so many are wanted."""
    w.events.clear()
    w.play(f"job replicas={replicas}", "wait 2", "wait 2", "wait 2")
    return [e.message for e in w.events if e.reason == "TooFewOpenFiles" and e.warning]


def message(w: World) -> str:
    condition = w.status.condition("Training")
    assert condition is not None
    return condition.message


# shows: more members are wanted, or train, than the leader's limit of open files allows
def test_a_limit_below_the_size_that_is_wanted_is_told_once() -> None:
    w = running(1024)
    assert "may open" not in message(w)
    assert scale(w, 100) == [SENTENCE]
    assert SENTENCE in message(w)
    assert w.status.current_round.number == 1
    assert w.status.current_round.phase == "Active", "it stops nothing"
    w.play("exit mnist-1-0 137")
    assert SENTENCE in message(w), "also while the next round forms"
    assert scale(w, 2) == []
    assert "may open" not in message(w)
    w.do("start mnist-1-1")
    assert len(scale(w, 100)) <= 1


@pytest.mark.parametrize(("open_files", "size"), [(1064, 8), (MAX_INT32, 8), (0, 8), (364, None)])
def test_a_limit_that_will_do_or_is_not_known_is_not_told(open_files: int, size: int | None) -> None:
    w = running(open_files, size)
    assert scale(w, 100) == []
    assert "may open" not in message(w)
