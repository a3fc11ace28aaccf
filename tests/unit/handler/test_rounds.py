"""torch's interface as the handler keeps it: rounds, their stores and ranks, and what the log says."""

from __future__ import annotations

import json
import logging
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from devcluster.wait import wait_for
from elasticjob.contract import names
from elasticjob.contract.reports import StartsReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.heartbeats import ProbeResult
from elasticjob.store.probe import probe
from elasticjob.warm.eligibility import Starts
from elasticjob.worker import fenced
from elasticjob.workers.torch_agent import AgentWorker
from tests.unit.handler.joining import Joining, Start, form, form_large, two
from tests.unit.memory_api import Leases, broken


def test_an_announcement_says_how_many_files_the_agent_may_open(leases: Leases, start: Start) -> None:
    joining = Joining(start("a"))
    assert (
        leases.announced("a").open_files == min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**31 - 1) > 0
    )
    form(leases, 1, "a")
    joining.result()


def test_everyone_returns_the_same_round(leases: Leases, start: Start) -> None:
    """I2, seen from torch."""
    handlers, infos, _ = two(leases, start)
    assert [info.rank for info in infos] == [0, 1]
    assert {info.world_size for info in infos} == {2}
    stores = {(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}  # type: ignore[union-attr]
    assert len(stores) == 1, "one fresh store for the workers"
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.established, "the leader reports")
    assert leases.report("b") is None
    assert [h.num_nodes_waiting() for h in handlers] == [0, 0]
    assert os.environ["ELASTICJOB_ROUND"] == "1"
    if handlers[0].use_agent_store:
        workers = TCPStore(*next(iter(stores)), is_master=False, wait_for_workers=False)
        workers.set("x", "y")


def test_one_write_per_participant_and_round(leases: Leases, start: Start) -> None:
    handlers, _, record = two(leases, start)
    leases.wait_for(lambda: leases.report("a") is not None, "the leader's report")
    assert leases.writes == 3, "two joins and the leader's report"
    leases.publish(broken(record))
    wait_for(lambda: all(h.num_nodes_waiting() for h in handlers), 60, "the end is seen", interval=0.01)
    joining = [Joining(handler) for handler in handlers]
    leases.announced("a", but=record.member_ids[0])
    leases.announced("b", but=record.member_ids[1])
    form(leases, 2, "a", "b")
    for one in joining:
        one.result()
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.nonce == "n2", "the leader's report")
    assert leases.writes == 6, "two joins and the leader's report"


def test_how_workers_have_started_goes_with_the_next_announcement(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Callable[[Starts], None]] = []
    monkeypatch.setattr(
        "elasticjob.agent.long_lived_parts.WarmWorkers.begin",
        lambda _self, _step, tell, **_: told.append(tell),
    )
    handler = start("a", warm=True)
    joining = Joining(handler)
    record = form(leases, 1, "a")
    joining.result()
    leases.wait_for(lambda: leases.report("a") is not None, "the leader's report")
    before = leases.writes
    told[0](Starts(1, 1, "no warm interpreter was ready"))
    time.sleep(0.3)
    assert leases.writes == before, "it is worth no write of its own"
    leases.publish(broken(record))
    rejoining = Joining(handler)
    leases.announced("a", but=record.member_ids[0])
    assert leases.writes == before + 1, "the announcement"
    text = leases.annotation("a", names.STARTS_ANNOTATION) or ""
    assert StartsReport.parse(text) == StartsReport("n1", 1, 1, "no warm interpreter was ready")
    form(leases, 2, "a")
    rejoining.result()


def test_every_round_has_fresh_stores(leases: Leases, start: Start) -> None:
    handlers, infos, record = two(leases, start)
    infos[0].store.set("torchelastic/role_info/0", "stale")
    leases.publish(broken(record))
    joining = [Joining(handler) for handler in handlers]
    leases.announced("a", but=record.member_ids[0])
    leases.announced("b", but=record.member_ids[1])
    form(leases, 2, "b", "a")
    again = [one.result() for one in joining]
    assert [info.rank for info in again] == [1, 0]
    assert not again[0].store.check(["torchelastic/role_info/0"])
    old, new = infos[0].bootstrap_store_info, again[0].bootstrap_store_info
    assert old is not None
    assert new is not None
    assert old.master_port != new.master_port


def test_a_large_round_and_a_spare_that_is_let_in_later(leases: Leases, start: Start) -> None:
    """The ranks come from the leader's store; an agent without one announces itself for the next round."""
    handlers = {pod: start(pod) for pod in "abc"}
    joining = {pod: Joining(handler) for pod, handler in handlers.items()}
    spare = leases.announced("c")
    first = form_large(leases, 1, "b", "a")
    infos = {pod: joining[pod].result() for pod in "ab"}
    assert {pod: (i.rank, i.world_size) for pod, i in infos.items()} == {"b": (0, 2), "a": (1, 2)}
    again = leases.announced("c", but=spare.id)
    assert (again.seen("uid"), again.from_round) == (1, 0)
    members = {pod: leases.announced(pod) for pod in "ab"}
    leases.publish(broken(first))
    joining |= {pod: Joining(handlers[pod]) for pod in "ab"}
    for pod, former in members.items():
        leases.announced(pod, but=former.id)
    assert leases.participant("c") == again, "what it has announced is for the round that comes now"
    form_large(leases, 2, "c", "a", "b")
    infos = {pod: joining[pod].result() for pod in "abc"}
    assert {pod: i.rank for pod, i in infos.items()} == {"c": 0, "a": 1, "b": 2}
    infos["c"].store.set("key", "value")
    assert infos["b"].store.get("key") == b"value"
    leases.wait_for(lambda: (r := leases.report("c")) is not None and r.established, "the leader reports")


def test_an_absent_operator_is_a_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.agent.joining.FIRST_LOG_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    Joining(start("a"))
    wait_for(lambda: "the operator runs" in caplog.text, 60, "what to check, in the log", interval=0.01)


def test_a_join_timeout_ends_the_wait_and_says_what_to_check(start: Start) -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"no round within 1 s; .*the operator runs"):
        Joining(start("a", join_timeout=1.0)).result()


def test_a_standby_waits_for_as_long_as_the_others_train(leases: Leases, start: Start) -> None:
    """As in torch, whose c10d has no timeout for a node of its redundancy list."""
    two(leases, start)
    standby = Joining(start("c", join_timeout=0.3))
    leases.announced("c")
    with pytest.raises(AssertionError, match="has not returned"):
        standby.result(2.0)
    leases.publish(replace(form(leases, 2, "a", "b"), phase="Broken"))
    with pytest.raises(RendezvousTimeoutError, match="no round within 0 s"):
        standby.result()


def test_a_round_of_which_no_member_is_heard_is_none_to_stand_by_for(leases: Leases, start: Start) -> None:
    """Without an operator nobody else ends it: all members may be dead, on nodes that are gone."""
    record = two(leases, start)[2]
    standby = Joining(start("c", rounds="peers", join_timeout=0.3))
    leases.announced("c")
    with pytest.raises(AssertionError, match="has not returned"):
        standby.result(1.0)
    leases.publish(replace(record, waiting_message="no member has renewed its Lease for 180 s (a, b)"))
    with pytest.raises(RendezvousTimeoutError, match="no member has renewed its Lease"):
        standby.result()


def test_the_operators_sentence_is_in_the_log(
    leases: Leases, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.agent.joining.FIRST_LOG_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    leases.publish(
        RoundRecord(
            "uid",
            0,
            "Broken",
            waiting_message="waiting for mnist-2-0; the round starts with 2 of 4 replicas in 5 s",
        )
    )
    Joining(start("a"))
    wait_for(
        lambda: "with 2 of 4 replicas in 5 s" in caplog.text, 60, "the sentence in the log", interval=0.01
    )
    assert "waiting for round 1" in caplog.text


def test_ranks_are_assigned_locally_when_the_round_is_over(leases: Leases, start: Start) -> None:
    _, infos, record = two(leases, start)
    store = infos[1].store
    leases.publish(broken(record))
    store.set("torchelastic/role_info/1", json.dumps({"role": "d", "rank": 1, "local_world_size": 4}))
    assert json.loads(store.get("torchelastic/assigned_ranks/1")) == [4, 8, 4, 8]


def test_torch_2_4_and_2_5_let_rank_0s_worker_serve_the_store(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one address that all agree on, another in each round; no server is there until the worker is."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    handlers, infos, record = two(leases, start)
    assert [handler.use_agent_store for handler in handlers] == [False, False]
    ports = {info.bootstrap_store_info.master_port for info in infos}  # type: ignore[union-attr]
    (port,) = ports
    assert probe({0: f"127.0.0.1:{port}"}, 5.0) == {0: ProbeResult.REFUSED}
    served, client = (
        TCPStore("127.0.0.1", port, 2, master, timedelta(seconds=20), wait_for_workers=False)
        for master in (True, False)
    )
    served.set("who", "rank 0")
    assert client.get("who") == b"rank 0"
    leases.publish(broken(record))
    joining = [Joining(handler) for handler in handlers]
    leases.announced("a", but=record.member_ids[0])
    leases.announced("b", but=record.member_ids[1])
    form(leases, 2, "a", "b")
    again = {one.result().bootstrap_store_info.master_port for one in joining}  # type: ignore[union-attr]
    assert len(again) == 1
    assert again.isdisjoint(ports)


def test_a_newcomer_among_others_that_train_announces_itself_when_it_is_warm(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    warming = [True]
    monkeypatch.setattr("elasticjob.agent.long_lived_parts.WarmWorkers.warming", lambda _: warming[0])
    handlers, _, first = two(leases, start)
    newcomer = Joining(start("c", warm=True))
    time.sleep(0.5)
    assert leases.participant("c") is None
    warming[0] = False
    announced = leases.announced("c")
    assert announced.seen("uid") == 1, "it asks for a place in the next round"
    leases.publish(broken(first))
    joining = [newcomer, *(Joining(handler) for handler in handlers)]
    for pod, former in zip("ab", first.member_ids, strict=True):
        leases.announced(pod, but=former)
    warming[0] = True
    form(leases, 2, "a", "b", "c")
    assert sorted(one.result().rank for one in joining) == [0, 1, 2]


@pytest.mark.parametrize("said", [True, False])
def test_a_pod_that_joins_rounds_later_starts_no_spares_after_a_container_was_out_of_memory(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, said: bool
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "elasticjob.agent.long_lived_parts.WarmWorkers.out_of_memory", lambda _, whose: told.append(whose)
    )
    leases.publish(RoundRecord("uid", 2, "Broken", "n2", cause="Grow", out_of_memory=said))
    joining = Joining(start("a", warm=True))
    form(leases, 3, "a", cause="Grow", out_of_memory=said)
    joining.result()
    assert set(told) == {"a container of this job"} if said else not told


def test_the_leader_s_lease_says_whether_all_members_can_start_warm(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: set[str] = set()
    handlers = {pod: start(pod, warm=True) for pod in "ab"}
    for pod, handler in handlers.items():
        assert handler._warm is not None
        monkeypatch.setattr(handler._warm, "prepared", partial(prepared.__contains__, pod))
    joining = [Joining(handler) for handler in handlers.values()]
    form(leases, 1, "a", "b")
    for one in joining:
        one.result()

    def preparing(pod: str) -> bool | None:
        text = leases.annotation(pod, names.STARTS_ANNOTATION)
        return None if text is None else StartsReport.parse(text).preparing

    leases.wait_for(lambda: leases.report("a") is not None, "the leader has said that all are there")
    assert preparing("a"), "in the same write"
    handlers["a"]._parts.lease.renew_every(0.1)
    prepared.add("b")
    before = leases.writes
    leases.wait_for(lambda: leases.writes > before + 15, "some renewals, and two heartbeats")
    assert preparing("a")
    prepared.add("a")
    leases.wait_for(lambda: not preparing("a"), "both are prepared")
    assert preparing("b") is None


def test_the_leader_s_lease_says_when_the_checkpoints_of_all_workers_are_fenced(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.agent.active_round.local_world_size", lambda _: 2)
    workers = AgentWorker(0, 0, 101, -1), AgentWorker(1, 1, 102, -1)
    monkeypatch.setattr("elasticjob.agent.active_round.RoundWorkers.listed", lambda _: workers)
    handlers = {pod: start(pod) for pod in "ab"}

    def opens(pod: str, local_rank: int) -> None:
        pid = workers[local_rank].pid
        Path(handlers[pod]._rounds.steps.folder, f"{pid}.1.{pid}{fenced.SUFFIX}").touch()

    def said(pod: str) -> str | None:
        return leases.annotation(pod, names.FENCED_ANNOTATION)

    def heartbeats(number: int) -> None:
        thread = handlers["a"]._parts.watch._round
        assert thread is not None
        until = thread.heartbeats._monitor._last_tick + number
        leases.wait_for(lambda: thread.heartbeats._monitor._last_tick > until, "some heartbeats")

    joining = [Joining(handler) for handler in handlers.values()]
    record = form(leases, 1, "a", "b")
    for one in joining:
        one.result()
    for pod, local_rank in (("a", 0), ("a", 1), ("b", 1)):
        opens(pod, local_rank)
    heartbeats(3)
    assert said("a") is None, "a worker of b has not opened its checkpoints"
    opens("b", 0)
    leases.wait_for(lambda: said("a") == record.nonce, "all have")
    assert said("b") is None


def test_a_newcomer_for_which_others_wait_announces_itself_at_once(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.agent.long_lived_parts.WarmWorkers.warming", lambda _: True)
    leases.publish(RoundRecord("uid", 0, "Broken"))
    joining = Joining(start("a", warm=True))
    leases.announced("a")
    form(leases, 1, "a")
    assert joining.result().rank == 0
