"""Agents with memory checkpoints meet in a round, send each other copies, and keep them for the next."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from devcluster.wait import wait_for
from elasticjob.agent import memory_meeting
from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.memory import AgentMemory, too_little
from elasticjob.agent.settings import Settings, SettingsError, read_settings
from elasticjob.contract.limits import Limits
from elasticjob.contract.names import MEMORY_AGENT_ENV
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Membership
from elasticjob.memory.client import Agent, State
from elasticjob.memory.membership import Members
from elasticjob.memory.pieces import PieceName, Save
from elasticjob.warm.interpreter_count import Memory
from tests.unit.handler.joining import Joining, Start, form
from tests.unit.memory.agents import content, copied, save
from tests.unit.memory_api import Leases, broken

LIMIT = 64 << 20


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit it from an agent; these agents share one process."""
    monkeypatch.setenv(MEMORY_AGENT_ENV, "")


def memory_of(handler: K8sRendezvousHandler) -> AgentMemory:
    found = handler._parts.memory
    assert found is not None
    return found


def members_of(handler: K8sRendezvousHandler) -> Members:
    """What it knows when the members have met."""
    memory = memory_of(handler)

    def met() -> Members | None:
        return None if memory._service is None else memory._service.keeper._round.members

    wait_for(lambda: met() is not None, 60, "the members have met", interval=0.01)
    found = met()
    assert found is not None
    return found


def worker_of(handler: K8sRendezvousHandler) -> Agent:
    return Agent(memory_of(handler).where)


def joined(leases: Leases, number: int, handlers: dict[str, K8sRendezvousHandler], *but: str) -> RoundRecord:
    joining = [Joining(handler) for handler in handlers.values()]
    for pod, old in zip(handlers, but, strict=False):
        leases.announced(pod, but=old)
    record = form(leases, number, *handlers)
    for one in joining:
        one.result()
    return record


def test_copies_go_to_another_node_and_all_have_the_same_token(leases: Leases, start: Start) -> None:
    nodes = {"a": "x", "b": "x", "c": "y", "d": "y"}
    handlers = {pod: start(pod, memory=LIMIT, node=node) for pod, node in nodes.items()}
    joined(leases, 1, handlers)
    met = {pod: members_of(handler) for pod, handler in handlers.items()}
    assert len({one.token for one in met.values()}) == 1
    at = {one.address: pod for pod, one in met.items()}
    assert {pod: at[one.partner] for pod, one in met.items()} == {"a": "c", "b": "d", "c": "a", "d": "b"}


def test_a_member_alone_copies_to_no_other(leases: Leases, start: Start) -> None:
    handler = start("a", memory=LIMIT)
    joined(leases, 1, {"a": handler})
    assert members_of(handler).partner == ""


def test_without_copies_no_port_is_open(leases: Leases, start: Start) -> None:
    handlers = {pod: start(pod, memory=LIMIT, copies=0) for pod in "ab"}
    joined(leases, 1, handlers)
    for handler in handlers.values():
        assert (members_of(handler).address, members_of(handler).partner) == ("", "")


def test_without_memory_there_is_none(leases: Leases, start: Start) -> None:
    handler = start("a")
    joined(leases, 1, {"a": handler})
    assert handler._parts.memory is None
    assert os.environ[MEMORY_AGENT_ENV] == ""


def test_what_is_saved_in_a_round_can_be_loaded_in_the_next(leases: Leases, start: Start) -> None:
    handlers = {pod: start(pod, memory=LIMIT) for pod in "ab"}
    record = joined(leases, 1, handlers)
    assert os.environ[MEMORY_AGENT_ENV] in {memory_of(handler).where for handler in handlers.values()}
    worker = worker_of(handlers["a"])
    assert (worker.round, worker.job) == (1, "uid")
    name = PieceName("uid", "f", Save(1, 1, 1, 7, 1), 0)
    save(worker, name)
    assert copied(worker, name) == ""
    leases.publish(broken(record))
    wait_for(lambda: all(h.num_nodes_waiting() for h in handlers.values()), 60, "the end", interval=0.01)

    joined(leases, 2, handlers, *record.member_ids)

    for handler in handlers.values():
        later = worker_of(handler)
        assert later.round == 2
        assert [held.name for held in later.inventory().held] == [name]
        assert content(later.lease(name)) == {7}


def test_the_end_of_the_handler_frees_everything(leases: Leases, start: Start) -> None:
    handler = start("a", memory=LIMIT)
    joined(leases, 1, {"a": handler})
    save(worker_of(handler), PieceName("uid", "f", Save(1, 1, 1, 7, 1), 0))
    memory = memory_of(handler)
    handler.shutdown()
    assert memory._service is not None
    assert sum(memory._service.keeper._shelf.held().values()) == 0
    assert MEMORY_AGENT_ENV not in os.environ


@pytest.mark.parametrize(
    ("cause", "all_stay"),
    [("ScaledUp", True), ("ScaledUp", False), ("ScaledDown", False), ("Suspended", False)],
)
def test_workers_hear_whether_all_pods_go_on_after_a_drain(
    leases: Leases, start: Start, cause: str, all_stay: bool
) -> None:
    handler = start("a", memory=LIMIT)
    record = joined(leases, 1, {"a": handler})
    worker = worker_of(handler)
    assert not worker.state_of(None).all_stay
    leases.publish(replace(record, phase="Draining", cause=cause, memory_alone=all_stay))
    wait_for(lambda: handler._core.drain_asked(), 60, "it drains", interval=0.01)
    if all_stay:
        wait_for(lambda: bool(worker.state_of(None).all_stay), 60, "the worker hears of it", interval=0.01)
    assert worker.state_of(None).all_stay == all_stay


def test_after_an_oom_of_the_job_nothing_more_is_saved(leases: Leases, start: Start) -> None:
    handler = start("a", memory=LIMIT)
    record = joined(leases, 1, {"a": handler})
    worker = worker_of(handler)
    leases.publish(broken(record, cause="OutOfMemory"))
    wait_for(lambda: handler.num_nodes_waiting() == 1, 60, "the end", interval=0.01)
    assert worker.state_of(None).off == "a container of this job was out of memory"


# -- members that do not meet ------------------------------------------------------------------------------


def silent(handler: K8sRendezvousHandler) -> None:
    """Its agent says nothing in the store, as if it could not reach it."""
    memory_of(handler).meet = lambda m: None  # type: ignore[method-assign] # noqa: ARG005


def state_after_a_save(handler: K8sRendezvousHandler) -> State:
    """What its agent says when a save has ended well."""
    worker, name = worker_of(handler), PieceName("uid", "f", Save(1, 1, 1, 7, 1), 0)
    save(worker, name)
    assert copied(worker, name) == ""
    return worker.state_of(name)


def test_members_copy_among_themselves_if_one_does_not_meet_them(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_meeting, "MEMBERS_SECONDS", 0.5)
    handlers = {pod: start(pod, memory=LIMIT) for pod in "abc"}
    silent(handlers["b"])
    joined(leases, 1, handlers)
    met = {pod: members_of(handlers[pod]) for pod in "ac"}
    assert (met["a"].partner, met["c"].partner) == (met["c"].address, met["a"].address)
    assert "1 of 3 members have no copies" in caplog.text
    assert "group ranks 1" in caplog.text
    assert state_after_a_save(handlers["a"]).copied


def test_members_wait_for_a_leader_that_says_nothing_for_a_while_and_save_without_copies(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_meeting, "PLAN_SECONDS", 0.5)
    handlers = {pod: start(pod, memory=LIMIT) for pod in "ab"}
    silent(handlers["a"])
    joined(leases, 1, handlers)
    assert "the leader has not said where copies go" in members_of(handlers["b"]).alone
    assert "its memory checkpoints have no copies: the leader has not said" in caplog.text
    found = state_after_a_save(handlers["b"])
    assert not found.copied
    assert "the leader has not said" in found.alone


@pytest.mark.parametrize(
    ("ranks", "rank", "size", "expected"),
    [
        ([0, 1, 2], 2, 3, (0, "")),
        ([0, 2, 3], 0, 4, (2, "")),
        ([0, 2, 3], 3, 4, (0, "")),
        ([0, 2, 3], 1, 4, (1, "this member has said too late where it takes copies")),
        ([0], 0, 2, (0, "no other member has said where it takes copies")),
        ([0], 0, 1, (0, "")),
    ],
)
def test_copies_go_to_the_next_member_that_takes_part(
    ranks: list[int], rank: int, size: int, expected: tuple[int, str]
) -> None:
    plan = {"ranks": ranks, "shift": 1 if len(ranks) > 1 else 0}
    assert memory_meeting.partner(plan, rank, size) == expected


# -- one agent's memory ------------------------------------------------------------------------------------


def alone(kills: Callable[[], int | None] = lambda: 0, memory: Memory | None = None) -> AgentMemory:
    settings = Settings("ns", "job", memory=LIMIT, copies=0)
    return AgentMemory(settings, threading.Condition(), None, lambda: memory, kills)


def member(number: int) -> Membership:
    return Membership("uid", number, "n", "id", 0, 1, "127.0.0.1:1", Limits())


def test_after_an_oom_kill_here_the_memory_is_freed_before_the_next_workers_start() -> None:
    kills = [0]
    memory = alone(lambda: kills[0])
    try:
        memory.begin(member(1))
        save(Agent(memory.where), PieceName("uid", "f", Save(1, 1, 1, 7, 1), 0))
        kills[0] = 1
        memory.begin(member(2))
        assert memory._service is not None
        assert sum(memory._service.keeper._shelf.held().values()) == 0
        assert "was killed because its memory was used up" in Agent(memory.where).state_of(None).off
    finally:
        memory.close()


def test_an_oom_before_the_first_round_counts_too() -> None:
    memory = alone()
    try:
        memory.out_of_memory("a container of this job")
        memory.begin(member(1))
        assert Agent(memory.where).state_of(None).off == "a container of this job was out of memory"
    finally:
        memory.close()


def test_an_agent_that_cannot_meet_the_others_holds_what_its_workers_save(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No member listens at port 1. A worker that is killed can be resumed from it all the same."""
    monkeypatch.setattr("elasticjob.agent.memory.RETRY_SECONDS", 0)
    memory = alone()
    try:
        memory.begin(member(1))
        memory.meet(member(1))
        worker, name = Agent(memory.where), PieceName("uid", "f", Save(1, 1, 1, 7, 1), 0)
        save(worker, name)
        assert copied(worker, name) == ""
        assert [held.name for held in worker.inventory().held] == [name]
        assert "its memory checkpoints have no copies: 127.0.0.1:1" in caplog.text
    finally:
        memory.close()


def test_a_tenth_of_the_container_s_memory_stays_free() -> None:
    memory = Memory(limit=1000 << 20, available=300 << 20)
    assert too_little(None, 1 << 40, 0) == ""
    assert too_little(memory, 200 << 20, 0) == ""
    assert too_little(memory, 201 << 20, 1 << 20) == "", "a warm interpreter goes first"
    why = too_little(memory, 201 << 20, 0)
    assert why.startswith("300 MiB of 1,000 MiB of memory are free, a save needs 201 MiB")


class Warm:
    """Interpreters that wait, of 400 MiB each."""

    def __init__(self, number: int) -> None:
        self.number = number

    def idle_pids(self) -> frozenset[int]:
        return frozenset(range(self.number))

    def end_one(self, why: str) -> bool:
        assert why
        self.number -= 1
        return True


@pytest.mark.parametrize(("size", "left"), [(100 << 20, 3), (200 << 20, 2), (600 << 20, 1)])
def test_warm_interpreters_end_before_their_memory_is_used(size: int, left: int) -> None:
    """The gate counts it as free, and a buffer took it while they still had it."""
    warm = Warm(3)

    def read() -> Memory:
        return Memory(limit=2000 << 20, available=(1550 - warm.number * 400) << 20)

    memory = AgentMemory(read_settings("ns/job", {}, None), threading.Condition(), cast(Any, warm), read)
    assert memory._gate(size) == ""
    memory._make_way(size)
    assert warm.number == left


def test_the_environment_says_how_much_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings("ns/job", {}, None).memory == 0
    for name, value in (("MEMORY", "8589934592"), ("COPIES", "0"), ("NODE", "n"), ("ZONE", "z")):
        monkeypatch.setenv(f"ELASTICJOB_{name}", value)
    found = read_settings("ns/job", {}, None)
    assert (found.memory, found.copies, found.node, found.zone) == (8 << 30, 0, "n", "z")


@pytest.mark.parametrize(("variable", "value"), [("MEMORY", "8Gi"), ("MEMORY", "-1"), ("COPIES", "2")])
def test_a_wrong_number_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"ELASTICJOB_{variable}", value)
    with pytest.raises(SettingsError, match=f"ELASTICJOB_{variable} is '{value}', expected a number from 0"):
        read_settings("ns/job", {}, None)
