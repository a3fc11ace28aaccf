"""torch's interface as the handler keeps it: real TCPStores, real threads, Leases in memory."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.utils import store as store_util

from devcluster.wait import wait_for
from elasticjob.api.errors import Forbidden, Unauthorized, Unavailable
from elasticjob.contract import names
from elasticjob.contract.limits import Limits
from elasticjob.contract.records import MemberList, RoundRecord
from elasticjob.core.beats import Probe
from elasticjob.handler import K8sRendezvousHandler
from elasticjob.resolver import shorten_lookups
from elasticjob.settings import Settings
from elasticjob.stores import StoreGone, probe
from elasticjob.torch_version import release
from tests.unit.memory_api import Leases, MemoryApi, broken

Start = Callable[..., K8sRendezvousHandler]


class Joining:
    """A call of ``next_rendezvous`` in a thread of its own; ``result`` re-raises what it raised."""

    def __init__(self, handler: K8sRendezvousHandler) -> None:
        self._handler = handler
        self._info: RendezvousInfo | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._info = self._handler.next_rendezvous()
        except BaseException as error:  # noqa: BLE001 - SystemExit is one of the answers
            self._error = error

    def result(self, seconds: float = 30.0) -> RendezvousInfo:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "next_rendezvous has not returned"
        if self._error is not None:
            raise self._error
        assert self._info is not None
        return self._info

    def waits(self) -> bool:
        return self._thread.is_alive()


@pytest.fixture(autouse=True, scope="module")
def _no_look_ups() -> None:
    """As ``make_handler`` does, and more: these tests are to take milliseconds."""
    shorten_lookups("attempts:0")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler sets these for the workers that its process starts; here they must not stay."""
    for name in ("ELASTICJOB_ROUND", "ELASTICJOB_PROGRESS_DIR", "PYTHONFAULTHANDLER"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def start(leases: Leases) -> Iterator[Start]:
    made: list[K8sRendezvousHandler] = []

    def one(pod: str, **settings: Any) -> K8sRendezvousHandler:
        chosen = Settings("ns", "job", pod=pod, pod_uid=f"uid-{pod}", **settings)
        made.append(K8sRendezvousHandler(chosen, "run", lambda: MemoryApi(leases)))
        return made[-1]

    yield one
    for handler in made:
        handler.shutdown()


def form(leases: Leases, number: int, *pods: str, **fields: Any) -> RoundRecord:
    """Publish a round of the participants that these pods have announced."""
    records = [leases.announced(pod) for pod in pods]
    record = RoundRecord(
        "uid", number, "Active", f"n{number}", tuple(r.id for r in records), records[0].endpoint, **fields
    )
    leases.publish(record)
    return record


def test_an_announcement_says_how_many_files_the_agent_may_open(leases: Leases, start: Start) -> None:
    joining = Joining(start("a"))
    assert (
        leases.announced("a").open_files == min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**31 - 1) > 0
    )
    form(leases, 1, "a")
    joining.result()


def two(leases: Leases, start: Start) -> tuple[list[K8sRendezvousHandler], list[RendezvousInfo], RoundRecord]:
    handlers = [start("a"), start("b")]
    joining = [Joining(handler) for handler in handlers]
    record = form(leases, 1, "a", "b")
    return handlers, [one.result() for one in joining], record


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
    leases.announced("a", but=record.members[0])
    leases.announced("b", but=record.members[1])
    form(leases, 2, "a", "b")
    for one in joining:
        one.result()
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.nonce == "n2", "the leader's report")
    assert leases.writes == 6, "two joins and the leader's report"


def test_every_round_has_fresh_stores(leases: Leases, start: Start) -> None:
    handlers, infos, record = two(leases, start)
    infos[0].store.set("torchelastic/role_info/0", "stale")
    leases.publish(broken(record))
    joining = [Joining(handler) for handler in handlers]
    leases.announced("a", but=record.members[0])
    leases.announced("b", but=record.members[1])
    form(leases, 2, "b", "a")
    again = [one.result() for one in joining]
    assert [info.rank for info in again] == [1, 0]
    assert not again[0].store.check(["torchelastic/role_info/0"])
    old, new = infos[0].bootstrap_store_info, again[0].bootstrap_store_info
    assert old is not None
    assert new is not None
    assert old.master_port != new.master_port


def test_a_worker_failure_is_reported_with_the_join(leases: Leases, start: Start) -> None:
    handlers, _, record = two(leases, start)
    Joining(handlers[1])
    again = leases.announced("b", but=record.members[1])
    failure = leases.failure("b")
    assert failure is not None
    assert (failure.number, failure.rank) == (1, 1)
    assert (again.last_job_uid, again.last_round) == ("uid", 1)


def test_a_restart_for_a_broken_round_is_no_failure(leases: Leases, start: Start) -> None:
    handlers, _, record = two(leases, start)
    leases.publish(broken(record))
    wait_for(lambda: handlers[1].num_nodes_waiting() > 0, 60, "the end is seen", interval=0.01)
    Joining(handlers[1])
    leases.announced("b", but=record.members[1])
    assert leases.failure("b") is None


def test_nothing_is_waiting_while_the_api_server_is_away(leases: Leases, start: Start) -> None:
    """I5."""
    handlers, _, _ = two(leases, start)
    with leases.changed:
        leases.trouble = Unavailable("no answer")
        leases.leases.clear()
        leases.changed.notify_all()
    assert [h.num_nodes_waiting() for h in handlers] == [0, 0]
    assert not handlers[0].is_closed()


def test_a_member_that_does_not_arrive_is_reported_and_the_round_left(leases: Leases, start: Start) -> None:
    joining = [Joining(start("a"))]
    record = leases.announced("a")
    first = RoundRecord(
        "uid", 1, "Active", "n1", (record.id, "absent"), record.endpoint, limits=Limits(establish_timeout=1)
    )
    leases.publish(first)
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.missing == (1,), "the report")
    leases.publish(broken(first, "NotEstablished"))
    leases.announced("a", but=record.id)
    form(leases, 2, "a")
    info = joining[0].result()
    assert (info.rank, info.world_size) == (0, 1)


def form_large(leases: Leases, number: int, *pods: str) -> RoundRecord:
    """Publish a round as if it were a large one: its members' list stands in a Lease of its own."""
    records = [leases.announced(pod) for pod in pods]
    members = MemberList("uid", number, f"n{number}", tuple(r.id for r in records))
    leases.put(names.members_lease("job"), {names.MEMBERS_ANNOTATION: members.dump()})
    record = RoundRecord(
        "uid",
        number,
        "Active",
        f"n{number}",
        leader=records[0].endpoint,
        size=len(pods),
        leader_id=records[0].id,
    )
    leases.publish(record)
    return record


def test_a_large_round_and_a_spare_that_is_let_in_later(leases: Leases, start: Start) -> None:
    """The ranks come from the leader's store; who has none there announces itself for the next round."""
    handlers = {pod: start(pod) for pod in "abc"}
    joining = {pod: Joining(handler) for pod, handler in handlers.items()}
    spare = leases.announced("c")
    first = form_large(leases, 1, "b", "a")
    infos = {pod: joining[pod].result() for pod in "ab"}
    assert {pod: (i.rank, i.world_size) for pod, i in infos.items()} == {"b": (0, 2), "a": (1, 2)}
    again = leases.announced("c", but=spare.id)
    assert (again.seen("uid"), again.last_round) == (1, 0)
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


def test_a_leader_that_cannot_be_reached_is_reported(leases: Leases, start: Start) -> None:
    joining = Joining(start("a"))
    record = leases.announced("a")
    with_dead_leader = RoundRecord(
        "uid", 1, "Active", "n1", ("dead", record.id), "127.0.0.1:1", limits=Limits(establish_timeout=1)
    )
    leases.publish(with_dead_leader)
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.leader_lost, "the report")
    report = leases.report("a")
    assert report is not None
    assert "refused" in report.message
    assert joining.waits()


def test_the_end_of_the_job(leases: Leases, start: Start) -> None:
    one, other = Joining(start("a")), Joining(start("b"))
    leases.announced("a")
    leases.announced("b")
    leases.publish(RoundRecord("uid", 3, "Closed", outcome="Complete", message="done"))
    for joining in (one, other):
        with pytest.raises(SystemExit) as exit_:
            joining.result()
        assert exit_.value.code == 0


def test_the_root_failure_is_in_the_last_lines_of_every_log(leases: Leases, start: Start) -> None:
    joining = Joining(start("a"))
    leases.publish(RoundRecord("uid", 3, "Closed", outcome="Failed", message="a worker of b failed"))
    with pytest.raises(RendezvousClosedError, match="a worker of b failed"):
        joining.result()


def test_only_the_operator_closes(leases: Leases, start: Start) -> None:
    """I8: whatever an agent does, nothing is closed for the others."""
    handlers, _, record = two(leases, start)
    handlers[0].set_closed()
    handlers[0].shutdown()
    assert not handlers[1].is_closed()
    assert handlers[1].num_nodes_waiting() == 0
    assert leases.leases["job-round"].annotations["elasticjob.dev/round"] == record.dump()


def test_shutdown_may_come_several_times(start: Start) -> None:
    handler = start("a")
    assert handler.shutdown()
    assert handler.shutdown()


def test_another_process_of_the_pod_supersedes(leases: Leases, start: Start) -> None:
    first = Joining(start("a"))
    record = leases.announced("a")
    second = Joining(start("a"))
    again = leases.announced("a", but=record.id)
    leases.publish(RoundRecord("uid", 1, "Broken"))  # makes both write again
    with pytest.raises(RendezvousStateError, match="another process of this pod"):
        first.result()
    assert second.waits()
    assert leases.announced("a", but=again.id).seen("uid") == 1


def test_missing_rights_end_with_advice(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.handler.GRANT_SECONDS", 0.5)
    leases.trouble = Forbidden("leases is forbidden", 403)
    ends_with(start("a"), "job-round", "Lease a", "RoleBinding", "kubectl -n ns get elasticjob job")


def test_a_token_that_nobody_accepts_ends_with_advice(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the limit for missing rights: kubelet may be about to replace it."""
    monkeypatch.setattr("elasticjob.handler.RBAC_SECONDS", 0.0)
    monkeypatch.setattr("elasticjob.handler.TOKEN_SECONDS", 0.5)
    leases.trouble = Unauthorized("Unauthorized", 401)
    ends_with(
        start("a"),
        "has rejected this pod's token",
        "kubectl -n ns get pod a",
        "kubectl -n ns get serviceaccounts",
    )


def ends_with(handler: K8sRendezvousHandler, *words: str) -> None:
    """It gives up joining, with all of the words."""
    with pytest.raises(RendezvousStateError) as error:
        Joining(handler).result()
    for one in words:
        assert one in str(error.value)


def test_a_token_that_nobody_accepts_ends_no_round(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I5. Nothing is renewed meanwhile, which the log says; with a new token all is well again."""
    monkeypatch.setattr("elasticjob.lease_writer.WARN_SECONDS", 0.0)
    handlers, _, record = two(leases, start)
    leases.wait_for(lambda: leases.report("a") is not None, "the leader's report")
    leases.trouble = Unauthorized("Unauthorized", 401)
    with caplog.at_level(logging.WARNING, "elasticjob"):
        for handler in handlers:
            handler._lease.say()
        wait_for(lambda: len(caplog.records) == 2, 60, "both say so")
    assert "the API server rejects this pod's token" in caplog.text
    assert [h.num_nodes_waiting() for h in handlers] == [0, 0]
    leases.trouble = None
    leases.publish(broken(record))
    wait_for(lambda: all(h.num_nodes_waiting() for h in handlers), 60, "both hear of the round's end")
    again = [Joining(handler) for handler in handlers]
    for pod, former in zip("ab", record.members, strict=True):
        leases.announced(pod, former)
    form(leases, 2, "a", "b")
    assert [one.result().rank for one in again] == [0, 1]


def test_a_missing_job_is_an_error(leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob.handler.NO_JOB_SECONDS", 0.1)
    leases.jobs["job"] = False
    with pytest.raises(RendezvousStateError, match="there is no ElasticJob job in namespace ns"):
        Joining(start("a")).result()


def test_an_absent_operator_is_a_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.handler.FIRST_SAY_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    with pytest.raises(RendezvousTimeoutError, match="no round within 3 s"):
        Joining(start("a", join_timeout=3.0)).result()
    assert "the operator runs" in caplog.text


def test_the_operators_sentence_is_in_the_log(
    leases: Leases, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.handler.FIRST_SAY_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    leases.publish(
        RoundRecord(
            "uid", 0, "Broken", waiting="2 of 4 replicas joined; the round starts with 2 members in 5 s"
        )
    )
    Joining(start("a", join_timeout=3.0))
    wait_for(lambda: "2 of 4 replicas joined" in caplog.text, 60, "the sentence in the log", interval=0.01)
    assert "waiting for round 1" in caplog.text


def test_ranks_are_assigned_locally_when_the_round_is_over(leases: Leases, start: Start) -> None:
    _, infos, record = two(leases, start)
    store = infos[1].store
    leases.publish(broken(record))
    store.set("torchelastic/role_info/1", json.dumps({"role": "d", "rank": 1, "local_world_size": 4}))
    assert json.loads(store.get("torchelastic/assigned_ranks/1")) == [4, 8, 4, 8]


def test_failures_of_workers_that_were_started_locally_are_not_reported(leases: Leases, start: Start) -> None:
    handlers, infos, record = two(leases, start)
    leases.publish(broken(record))
    wait_for(lambda: handlers[1]._core.over(), 60, "the end is seen", interval=0.01)
    infos[1].store.set(
        "torchelastic/role_info/1", json.dumps({"role": "d", "rank": 1, "local_world_size": 1})
    )
    Joining(handlers[1])
    leases.announced("b", but=record.members[1])
    assert leases.failure("b") is None


def test_the_exit_barrier_is_success(leases: Leases, start: Start) -> None:
    handlers, infos, record = two(leases, start)
    threads = [
        threading.Thread(
            target=store_util.barrier, args=(info.store, 2, "torchelastic/agent/terminal_state"), daemon=True
        )
        for info in infos
    ]
    threads[0].start()
    leases.wait_for(lambda: (r := leases.participant("a")) and r.state == "Succeeded", "a has succeeded")
    first = leases.participant("a")
    assert first is not None
    assert first.last_round == 1
    assert leases.annotation("a", names.FINISHED_ANNOTATION) == record.nonce
    assert threads[0].is_alive(), "the barrier waits for b"
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    leases.wait_for(lambda: (r := leases.participant("b")) and r.state == "Succeeded", "b has succeeded")
    lingering = threading.Thread(target=handlers[0].shutdown, daemon=True)
    lingering.start()
    lingering.join(25)
    assert not lingering.is_alive(), "all have passed: the leader need not linger"


def test_the_exit_barrier_of_torch_2_4(leases: Leases, start: Start) -> None:
    """It waits by ``get`` where later versions ``wait``; here as there its passing is counted."""
    handlers, infos, _ = two(leases, start)

    def barrier(store: Any) -> None:
        if store.add("torchelastic/agent/terminal_state/num_members", 1) == 2:
            store.set("torchelastic/agent/terminal_state/last_member", "<val_ignored>")
        store.get("torchelastic/agent/terminal_state/last_member")

    threads = [threading.Thread(target=barrier, args=(info.store,), daemon=True) for info in infos]
    threads[0].start()
    leases.wait_for(lambda: (r := leases.participant("a")) and r.state == "Succeeded", "a has succeeded")
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    active = handlers[0]._round
    assert active is not None
    assert active.store.passed
    assert active.store.all_passed()


def test_torch_2_4_and_2_5_let_rank_0s_worker_serve_the_store(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one address that all agree on, another in each round; nobody listens there until the worker does."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    handlers, infos, record = two(leases, start)
    assert [handler.use_agent_store for handler in handlers] == [False, False]
    ports = {info.bootstrap_store_info.master_port for info in infos}  # type: ignore[union-attr]
    (port,) = ports
    assert probe({0: f"127.0.0.1:{port}"}, 5.0) == {0: Probe.REFUSED}
    served, client = (
        TCPStore("127.0.0.1", port, 2, master, timedelta(seconds=20), wait_for_workers=False)
        for master in (True, False)
    )
    served.set("who", "rank 0")
    assert client.get("who") == b"rank 0"
    leases.publish(broken(record))
    joining = [Joining(handler) for handler in handlers]
    leases.announced("a", but=record.members[0])
    leases.announced("b", but=record.members[1])
    form(leases, 2, "a", "b")
    again = {one.result().bootstrap_store_info.master_port for one in joining}  # type: ignore[union-attr]
    assert len(again) == 1
    assert again.isdisjoint(ports)


def test_the_exit_barrier_ends_with_the_round(leases: Leases, start: Start) -> None:
    _, infos, record = two(leases, start)
    raised: list[Exception] = []

    def enter() -> None:
        try:
            store_util.barrier(infos[0].store, 2, "torchelastic/agent/terminal_state")
        except (RuntimeError, StoreGone) as error:  # the latter if it has not yet come to the waiting
            raised.append(error)

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    leases.wait_for(lambda: (r := leases.participant("a")) and r.state == "Succeeded", "a has succeeded")
    leases.publish(broken(record, "PodLost"))
    thread.join(60)
    assert not thread.is_alive()
    assert "PodLost" in str(raised[0])


def test_a_silent_member_is_reported_by_the_leader(leases: Leases, start: Start) -> None:
    """Its agent is gone and its port with it: refused is lost, within seconds, whatever its workers do."""
    handlers, infos, _ = two(leases, start)
    handlers[1]._stop_threads()
    handlers[1]._servers.close()
    infos.clear()
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.silent == (1,), "the report")


def test_members_report_a_leader_that_is_gone(leases: Leases, start: Start) -> None:
    handlers, infos, _ = two(leases, start)
    handlers[0]._stop_threads()
    handlers[0]._servers.close()
    infos.clear()
    leases.wait_for(lambda: (r := leases.report("b")) is not None and r.leader_lost, "the report")


def test_sigterm_in_the_first_rendezvous_ends_the_process() -> None:
    """As PID 1 of a pod a process without a handler would never see it."""
    script = textwrap.dedent(
        """
        import sys
        from elasticjob.handler import K8sRendezvousHandler
        from elasticjob.settings import Settings
        from tests.unit.memory_api import Leases, MemoryApi
        leases = Leases()
        settings = Settings("ns", "job", pod="a", pod_uid="u")
        handler = K8sRendezvousHandler(settings, "run", lambda: MemoryApi(leases))
        import threading
        def say():
            leases.announced("a")
            print("joined", flush=True)
        threading.Thread(target=say).start()
        try:
            handler.next_rendezvous()
        finally:
            print(leases.participant("a").state, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert process.stdout.read() == "Leaving\n"


def test_what_is_left_of_the_workers_is_killed(leases: Leases, start: Start) -> None:
    """torch may take a minute to stop workers that ignore SIGTERM; the others wait for them."""
    handler = start("a", worker_stop=0.5)
    joining = Joining(handler)
    record = form(leases, 1, "a")
    joining.result()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    leases.publish(broken(record))
    assert worker.wait(timeout=60) == -signal.SIGKILL


def test_workers_of_the_next_round_are_left_alone(leases: Leases, start: Start) -> None:
    """torch has come back in time: whoever is a child of the agent now is a worker of the new round."""
    handler = start("a", worker_stop=0.5)
    joining = Joining(handler)
    record = form(leases, 1, "a")
    joining.result()
    others = set(threading.enumerate())
    leases.publish(broken(record))
    wait_for(lambda: handler.num_nodes_waiting(), 60, "the end is seen", interval=0.01)
    guards = wait_for(
        lambda: [t for t in set(threading.enumerate()) - others if isinstance(t, threading.Timer)],
        20,
        "the first round's guard",
        interval=0.01,
    )
    joining = Joining(handler)
    leases.announced("a", but=record.members[0])
    form(leases, 2, "a")
    joining.result()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        for guard in guards:
            guard.join(60)
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()


def test_importing_the_entry_point_imports_nothing() -> None:
    heavy = "('torch', 'urllib3', 'kubernetes')"
    code = f"import sys; import elasticjob.entry; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


@pytest.mark.skipif(release(str(torch.__version__)) < (2, 5), reason="torch 2.4 knows no entry points")
def test_torch_finds_the_backend_by_its_name() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    with pytest.raises(ValueError, match="--rdzv-endpoint is 'a:1', expected"):
        get_rendezvous_handler(RendezvousParameters("k8s", "a:1", "run", 1, 2))


def test_unknown_settings_are_named() -> None:
    from elasticjob.settings import SettingsError, read_settings

    with pytest.raises(SettingsError, match="unknown key join_timout"):
        read_settings("ns/job", {"join_timout": "3", "timeout": 900}, None)
    with pytest.raises(SettingsError, match="join_timeout is 'soon', expected a number of seconds"):
        read_settings("ns/job", {"join_timeout": "soon"}, None)
    assert read_settings("job", {}, None).namespace == ""


@pytest.mark.parametrize("name", ["Mnist", "m" * 46, "m" * 70, "my_job", "-job", "job-", "jöb"])
def test_a_name_that_no_job_can_have_is_refused_at_once(name: str) -> None:
    """Not after some seconds of 403, which is all that the API server says of it."""
    from elasticjob.settings import SettingsError, read_settings

    with pytest.raises(SettingsError, match="is not a valid ElasticJob name"):
        read_settings(f"ns/{name}", {}, None)
    with pytest.raises(SettingsError, match="is not a valid namespace name"):
        read_settings("My_Namespace/job", {}, None)
    assert read_settings(f"ns/{'m' * 45}", {}, None).job == "m" * 45


def test_a_pod_that_was_never_granted_its_rights_waits_for_the_operator(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod of others that starts while the operator is away: each would end with exit code 1."""
    monkeypatch.setattr("elasticjob.handler.RBAC_SECONDS", 0.2)
    monkeypatch.setattr("elasticjob.handler.FIRST_SAY_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    leases.trouble = Forbidden('User "x" cannot patch resource "leases"', 403)
    joining = Joining(start("a"))
    wait_for(lambda: "for the operator to grant this pod its rights" in caplog.text, 20, "it says so")
    assert joining.waits()
    leases.trouble = None
    form(leases, 1, "a")
    assert joining.result(60).rank == 0


@pytest.mark.parametrize("why", ["another namespace", "an admission policy"])
def test_what_no_operator_would_grant_is_an_error_soon(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("elasticjob.handler.RBAC_SECONDS", 0.5)
    policy = "ValidatingAdmissionPolicy 'own' with binding 'own' denied request: not this pod's Lease"
    leases.trouble = Forbidden(policy if why == "an admission policy" else "cannot get", 403)
    ends_with(start("a", elsewhere=why == "another namespace"), "denied access for")


def test_rights_that_were_taken_away_are_an_error_soon(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ElasticJob was deleted under its pods, and its Role with it."""
    monkeypatch.setattr("elasticjob.handler.RBAC_SECONDS", 0.5)
    handlers, _, _ = two(leases, start)
    with leases.changed:
        leases.trouble = Forbidden("cannot get", 403)
        leases.changed.notify_all()
    ends_with(handlers[1], "denied access for")


@pytest.mark.parametrize(
    "why", ["cannot get", 'admission webhook "leases.example.com" denied the request: no']
)
def test_a_pod_of_the_operator_s_waits_for_rights_that_were_taken_away(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Somebody has deleted the Role, or rolled out a policy: each member would end with exit code 1, charged
    to its script."""
    monkeypatch.setattr("elasticjob.handler.RBAC_SECONDS", 0.2)
    handlers = [start(pod, job_uid="uid") for pod in ("a", "b")]
    joining = [Joining(handler) for handler in handlers]
    record = form(leases, 1, "a", "b")
    assert [one.result(60).rank for one in joining] == [0, 1]
    with leases.changed:
        leases.trouble = Forbidden(why, 403)
        leases.changed.notify_all()
    again = [Joining(handler) for handler in handlers]
    wait_for(lambda: all(h._lease.refusal.lasted(Forbidden) > 1 for h in handlers), 60, "it is refused")
    assert all(one.waits() for one in again)
    leases.trouble = None
    leases.publish(broken(record))
    for pod, before in zip("ab", record.members, strict=True):
        leases.announced(pod, but=before)
    form(leases, 2, "a", "b")
    assert {one.result(60).rank for one in again} == {0, 1}


def test_ports_that_can_not_be_tried_accuse_nobody() -> None:
    """No descriptor is left here (EMFILE): that is nothing to judge a peer by, and no thread ends of it."""
    script = textwrap.dedent(
        """
        import os, resource
        from elasticjob.stores import Unreachable, connect, probe, serve
        server = serve()
        endpoint = f"127.0.0.1:{server.port}"
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
        files = []
        try:
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for free in (0, 1):  # not even a selector, then no socket
            for _ in range(free):
                os.close(files.pop())
            assert probe({0: endpoint}, 1.0) == {}
            try:
                connect(endpoint)
            except Unreachable as error:
                assert "cannot open more" in str(error)
            else:
                raise AssertionError("connected")
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_threads_that_watch_the_others_bear_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from elasticjob.looking_back import LookingBack

    lost, calls = threading.Event(), []

    def one_probe(endpoints: dict[int, str], seconds: float) -> dict[int, Probe]:
        calls.append(seconds)
        if len(calls) == 1:
            raise OSError(24, "Too many open files")
        return dict.fromkeys(endpoints, Probe.REFUSED)

    monkeypatch.setattr("elasticjob.looking_back.probe", one_probe)
    looking_back = LookingBack({1: "127.0.0.1:1"}, Limits(heartbeat_timeout=0.1), lambda _: lost.set())
    looking_back.start()
    assert lost.wait(30)
    looking_back.stop()
