"""A connection to the API server that is dead without a word: what the handler does to notice."""

# shows: one API server of several fails silently, with the connections of some pods

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from torch.distributed import PrefixStore

from devcluster.wait import wait_for
from elasticjob.api import leases
from elasticjob.api.connection import Connection, _pool
from elasticjob.api.errors import Unavailable
from elasticjob.api.leases import HttpLeaseApi
from elasticjob.contract.limits import Limits
from elasticjob.contract.names import ROUND_ANNOTATION
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Membership
from elasticjob.leases import round_source
from elasticjob.leases.round_source import LeaseRoundSource
from elasticjob.leases.writer import LeaseWriter
from elasticjob.store.connection import KeyValueStore
from elasticjob.store.server import serve
from elasticjob.watch.heartbeats import ENDPOINT_KEY, HEARTBEAT_KEY, NO_STEP, STEP_KEY, Heartbeats
from elasticjob.watch.step_files import StepReader
from tests.unit.listening import Listening
from tests.unit.test_participant import ROUND

DEADLINE = 60.0


class Server(ThreadingHTTPServer):
    """An API server of one Lease. ``strand`` makes every connection of now dead: open, and nothing comes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.generation = self.connections = 0
        self.annotations: list[dict[str, str]] = []
        self.watches = 0
        self.record = ROUND

    def strand(self) -> None:
        self.generation += 1

    def connect(self) -> HttpLeaseApi:
        pool = _pool(ssl.create_default_context())
        return HttpLeaseApi(Connection(f"http://127.0.0.1:{self.server_port}", pool, dict), "default")

    def lease(self) -> dict[str, Any]:
        meta = {"resourceVersion": "1", "annotations": {ROUND_ANNOTATION: self.record.dump()}}
        return {"metadata": meta, "spec": {"holderIdentity": "me"}}


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1
        self._generation = self.server.generation

    def _is_stranded(self) -> bool:
        if self._generation == self.server.generation:
            return False
        self.rfile.read()  # until the other end gives up
        self.close_connection = True
        return True

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._is_stranded():
            return
        self.server.annotations.append(json.loads(body)["metadata"]["annotations"])
        answer = json.dumps(self.server.lease()).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        if self._is_stranded():
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        event = json.dumps({"type": "ADDED", "object": self.server.lease()}).encode() + b"\n"
        self.server.watches += 1
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.rfile.read()
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.socket.close()
    thread.join(DEADLINE)


def test_a_write_on_a_dead_connection_is_repeated_on_a_new_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ANSWER_SECONDS", 3.0)
    writer = LeaseWriter(server.connect(), "pod", "uid", {})
    try:
        writer.write(participant="one")
        assert writer.flush(DEADLINE)
        server.strand()
        writer.write(participant="two")
        assert writer.flush(DEADLINE)
        assert server.annotations[-1]["elasticjob.dev/participant"] == "two"
        assert server.connections >= 2
    finally:
        writer.stop()


def test_a_server_that_accepts_and_never_answers_holds_up_no_watch(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ANSWER_SECONDS", 0.5)
    api = server.connect()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        api._base = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(Unavailable):
            next(api.watch("job-round"))


def test_a_watch_that_was_answered_may_be_silent_for_longer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(leases, "SILENT_WATCH_SECONDS", 2.0)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        list(server.connect().watch("job-round"))
    assert time.monotonic() - began >= 2.0


def test_a_watch_in_doubt_is_opened_anew_and_one_that_lives_is_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_source, "REOPEN_SECONDS", 0.0)
    seen: list[RoundRecord] = []
    watcher = LeaseRoundSource(server.connect(), server.connect(), "job", seen.append)
    watcher.start()
    try:
        wait_for(lambda: len(seen) == 1, DEADLINE, "the first record")
        watcher.verify(time.monotonic() - 60.0)
        assert server.watches == 1, "it has shown life since"
        server.strand()
        watcher.verify(time.monotonic())
        wait_for(lambda: len(seen) == 2, DEADLINE, "the record by another connection")
        assert server.watches == 2
    finally:
        watcher.stop()


def test_a_dead_path_is_noticed_by_the_kernel() -> None:
    """Idle or not, within some ten seconds; the API server has nothing to do for that."""
    pool = _pool(ssl.create_default_context())
    options = {(level, name): value for level, name, value in pool.connection_pool_kw["socket_options"]}
    assert options[(socket.SOL_SOCKET, socket.SO_KEEPALIVE)] == 1
    idle, interval, count = (
        options[(socket.IPPROTO_TCP, getattr(socket, name))]
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    )
    assert idle + interval * count <= 12
    assert options[(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)] <= 12_000


@pytest.mark.parametrize(
    "moment", ["while it sends heartbeats", "before its first heartbeat", "its connection has just gone"]
)
def test_a_member_learns_that_the_leader_has_left_the_round(moment: str) -> None:
    """The leader's store goes on answering heartbeats: without this only the record would tell."""
    server = serve()
    leader = f"127.0.0.1:{server.port}"
    limits = Limits(stall_timeout=600)
    rounds = [Membership("uid", 1, "n", name, rank, 2, leader, limits) for rank, name in enumerate("ab")]
    store = cast(KeyValueStore, PrefixStore(rounds[0].prefix, server))
    for rank in range(2):
        keys = [f"{HEARTBEAT_KEY}{rank}", f"{STEP_KEY}{rank}", f"{ENDPOINT_KEY}{rank}"]
        store.multi_set(keys, ["0", str(NO_STEP), leader])
    verified: list[list[float]] = [[], []]
    lost: list[object] = []
    heartbeats = [
        Heartbeats(
            one,
            StepReader(""),
            Listening(lost=lost.append, verify_source=verified[one.group_rank].append),
        )
        for one in rounds
    ]
    for one in heartbeats:
        one.start()
    try:
        if moment != "before its first heartbeat":
            wait_for(lambda: int(store.get(f"{HEARTBEAT_KEY}1")) > 4, DEADLINE, "some heartbeats")
        if moment == "its connection has just gone":
            heartbeats[0]._connection.close()
        left_at = time.monotonic()
        heartbeats[0].leave()
        heartbeats[0].stop()
        heartbeats[0].tell_left()
        wait_for(
            lambda: any(at >= left_at for at in verified[1]),
            DEADLINE,
            lambda: (
                f"the watch is verified; {left_at=}, {verified=}, count {store.get(f'{HEARTBEAT_KEY}1')!r}"
            ),
        )
        assert not lost
    finally:
        for one in heartbeats:
            one.stop()
