"""What the handler tells the pod's preStop hook while its round runs. The hook itself: ``test_pre_stop``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster.wait import wait_for
from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.contract import names
from elasticjob.contract.round_record import RoundRecord
from elasticjob.drain.pre_stop import PodHook
from tests.unit.handler.joining import Joining, Start, form
from tests.unit.memory_api import Leases, broken


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], bool]]:
    """Whether the handler of the pod says this word."""
    uid = f"test-{uuid.uuid4()}"
    monkeypatch.setenv(names.POD_UID_ENV, uid)
    yield lambda what: any(
        Path(folder, f"{names.HOOK_PREFIX}{uid}.{what}").exists() for folder in names.HOOK_FOLDERS
    )
    PodHook(uid)


@pytest.fixture
def record(leases: Leases, start: Start) -> RoundRecord:
    """A round that runs."""
    return joined(leases, start)[1]


def joined(leases: Leases, start: Start) -> tuple[K8sRendezvousHandler, RoundRecord]:
    handler = start("a")
    joining = Joining(handler)
    made = form(leases, 1, "a")
    joining.result()
    return handler, made


def seen(what: Callable[[], bool], message: str) -> None:
    wait_for(what, 60, message, interval=0.01)


# shows: a pod is deleted, evicted or preempted, and the script calls `should_stop`
def test_the_hook_is_told_while_members_are_being_replaced(
    said: Callable[[str], bool], leases: Leases, record: RoundRecord
) -> None:
    leases.publish(replace(record, replacing=True))
    seen(lambda: said(names.HOOK_REPLACING), "the hook is told")
    leases.publish(replace(record, waiting_message="nothing new"))
    seen(lambda: not said(names.HOOK_REPLACING), "it is so no more")


# shows: the job is deleted, at any moment
def test_nobody_waits_for_the_next_pod_of_a_job_that_was_deleted(
    said: Callable[[str], bool], leases: Leases, record: RoundRecord
) -> None:
    leases.publish(replace(record, replacing=True))
    seen(lambda: said(names.HOOK_REPLACING), "the hook is told")
    leases.delete(names.round_lease("job"))
    seen(lambda: not said(names.HOOK_REPLACING), "it is so no more")


def test_the_hook_never_finds_both_words_missing_as_the_drain_begins(
    said: Callable[[str], bool], leases: Leases, start: Start
) -> None:
    """The drain says its own word when it has reached the round's store."""
    handler, record = joined(leases, start)
    leases.publish(replace(record, replacing=True))
    seen(lambda: said(names.HOOK_REPLACING), "the hook is told")
    leases.publish(replace(record, phase="Draining"))
    drain = handler._rounds.active.drain  # type: ignore[union-attr]
    seen(lambda: drain._started, "the drain has begun")
    leases.publish(replace(record, phase="Draining", waiting_message="heard twice"))
    seen(lambda: handler._core.latest.waiting_message == "heard twice", "heard")  # type: ignore[union-attr]
    assert said(names.HOOK_REPLACING)
    leases.publish(broken(record))
    seen(lambda: bool(handler.num_nodes_waiting()), "the round is over")
    assert said(names.HOOK_REPLACING), "its workers have not been stopped yet"
    handler.shutdown()
    assert not said(names.HOOK_REPLACING)
