"""A member, the leader or the API server does not answer: what is reported of them, and of workers."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from devcluster.wait import wait_for
from elasticjob.api.errors import Unavailable
from elasticjob.contract.limits import Limits
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.heartbeats import ProbeResult
from elasticjob.store.server import serve
from elasticjob.watch.post_round_probe import PostRoundProbe
from tests.unit.handler.joining import Joining, Start, form, two
from tests.unit.memory_api import Leases, broken


def test_a_worker_failure_is_reported_with_the_join(leases: Leases, start: Start) -> None:
    handlers, _, record = two(leases, start)
    Joining(handlers[1])
    again = leases.announced("b", but=record.member_ids[1])
    failure = leases.failure("b")
    assert failure is not None
    assert (failure.round_number, failure.group_rank) == (1, 1)
    assert (again.from_job_uid, again.from_round) == ("uid", 1)


def test_a_restart_for_a_broken_round_is_no_failure(leases: Leases, start: Start) -> None:
    handlers, _, record = two(leases, start)
    leases.publish(broken(record))
    wait_for(lambda: handlers[1].num_nodes_waiting() > 0, 60, "the end is seen", interval=0.01)
    Joining(handlers[1])
    leases.announced("b", but=record.member_ids[1])
    assert leases.failure("b") is None


def test_nothing_is_waiting_while_the_api_server_is_away(leases: Leases, start: Start) -> None:
    """I5."""
    handlers, _, _ = two(leases, start)
    with leases.changed:
        leases.error = Unavailable("no answer")
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
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.unarrived_ranks == (1,), "the report")
    leases.publish(broken(first, "NotEstablished"))
    leases.announced("a", but=record.id)
    form(leases, 2, "a")
    info = joining[0].result()
    assert (info.rank, info.world_size) == (0, 1)


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


# shows: torchrun cannot connect to any server, for a reason of its own (an error of torch, ...
def test_a_process_that_can_connect_to_nobody_accuses_no_leader(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent ends, and says why: neither its leader nor a node has anything to do with it."""
    server = serve()
    client_fails(monkeypatch, RuntimeError("of its own making"))
    joining = Joining(start("a"))
    record = leases.announced("a")
    leader = f"127.0.0.1:{server.port}"
    leases.publish(RoundRecord("uid", 1, "Active", "n1", ("leader", record.id), leader))
    with pytest.raises(RendezvousConnectionError, match="RuntimeError: of its own making"):
        joining.result()
    assert leases.report("a") is None
    failure = leases.failure("a")
    assert failure is not None
    assert (failure.round_number, failure.group_rank) == (1, 1)
    assert failure.message.endswith("RuntimeError: of its own making")


# shows: torchrun cannot connect to any server, for a reason of its own (an error of torch, ...
def test_a_process_that_is_short_of_descriptors_tries_again_and_accuses_no_leader(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    tried = []

    def one_probe(_: dict[int, str], seconds: float) -> dict[int, ProbeResult]:
        tried.append(seconds)
        return {}

    monkeypatch.setattr("elasticjob.store.connect.probe", one_probe)
    joining = Joining(start("a"))
    record = leases.announced("a")
    leader, limits = f"127.0.0.1:{server.port}", Limits(establish_timeout=1)
    leases.publish(RoundRecord("uid", 1, "Active", "n1", ("leader", record.id), leader, limits=limits))
    with pytest.raises(RendezvousConnectionError, match="cannot open more connections"):
        joining.result()
    assert len(tried) > 1
    assert leases.report("a") is None


@pytest.mark.parametrize("error", [DistNetworkError("reset"), TimeoutError("too late"), OSError("broken")])
def test_what_comes_from_the_network_accuses_the_leader(
    error: Exception, leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    client_fails(monkeypatch, error)
    Joining(start("a"))
    record = leases.announced("a")
    leader, limits = f"127.0.0.1:{server.port}", Limits(establish_timeout=1)
    leases.publish(RoundRecord("uid", 1, "Active", "n1", ("leader", record.id), leader, limits=limits))
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.leader_lost, "the report")
    report = leases.report("a")
    assert report is not None
    assert str(error) in report.message


def client_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """No TCPStore can be a client any more."""

    def store(host: str, port: int, is_master: bool, **options: Any) -> TCPStore:
        if not is_master:
            raise error
        return TCPStore(host, port, is_master=True, **options)

    monkeypatch.setattr("elasticjob.store.connect.TCPStore", store)


def test_failures_of_workers_that_were_started_locally_are_not_reported(leases: Leases, start: Start) -> None:
    handlers, infos, record = two(leases, start)
    leases.publish(broken(record))
    wait_for(lambda: handlers[1]._core.end_reason(), 60, "the end is seen", interval=0.01)
    infos[1].store.set(
        "torchelastic/role_info/1", json.dumps({"role": "d", "rank": 1, "local_world_size": 1})
    )
    Joining(handlers[1])
    leases.announced("b", but=record.member_ids[1])
    assert leases.failure("b") is None


# shows: an agent dies, and its port with it
def test_a_silent_member_is_reported_by_the_leader(leases: Leases, start: Start) -> None:
    """Its agent is gone and its port with it: refused is lost, within seconds, whatever its workers do."""
    handlers, infos, _ = two(leases, start)
    handlers[1]._stop_threads()
    handlers[1]._parts.servers.close()
    infos.clear()
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.silent_ranks == (1,), "the report")


def test_members_report_a_leader_that_is_gone(leases: Leases, start: Start) -> None:
    handlers, infos, _ = two(leases, start)
    handlers[0]._stop_threads()
    handlers[0]._parts.servers.close()
    infos.clear()
    leases.wait_for(lambda: (r := leases.report("b")) is not None and r.leader_lost, "the report")


def test_ports_that_can_not_be_tried_accuse_nobody() -> None:
    """No descriptor is left here (EMFILE): that is nothing to judge a peer by, and no thread ends of it."""
    script = textwrap.dedent(
        """
        import os, resource
        from elasticjob.store.connect import connect
        from elasticjob.store.errors import CannotConnect
        from elasticjob.store.probe import probe
        from elasticjob.store.server import serve
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
            except CannotConnect as error:
                assert "cannot open more" in str(error)
                assert error.passing
            else:
                raise AssertionError("connected")
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_the_threads_that_watch_the_others_bear_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, calls = threading.Event(), []

    def one_probe(endpoints: dict[int, str], seconds: float) -> dict[int, ProbeResult]:
        calls.append(seconds)
        if len(calls) == 1:
            raise OSError(24, "Too many open files")
        return dict.fromkeys(endpoints, ProbeResult.REFUSED)

    monkeypatch.setattr("elasticjob.watch.post_round_probe.probe", one_probe)
    post_round_probe = PostRoundProbe({1: "127.0.0.1:1"}, Limits(heartbeat_timeout=0.1), lambda _: lost.set())
    post_round_probe.start()
    assert lost.wait(30)
    post_round_probe.stop()
