"""The thread that coordinates, with Leases in memory: what it does about requests that are refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from devcluster.wait import wait_for
from elasticjob.api.errors import ApiError, Conflict, Forbidden, Unauthorized, Unavailable
from elasticjob.api.leases import Lease
from elasticjob.api.listing import HttpListApi
from elasticjob.contract import names
from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.round_record import RoundRecord
from elasticjob.coordination import directory
from elasticjob.coordination.pods import Pods
from elasticjob.coordination.reading import read_round, round_body
from elasticjob.coordination.source import PeerSource
from elasticjob.leases.round_source import LeaseRoundSource
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.round_lease import Identity, Read, Write
from elasticjob.peers.run import PEER_ANNOTATION, RUN_LABEL, Run, round_lease
from elasticjob.peers.settled import Settled
from tests.unit.memory_api import Leases, MemoryApi
from tests.unit.peers.table import Table

RUN, ME = Run("mnist", "run-1", 1, 1), Identity("pod-0", "uid-0")
NAME = round_lease(RUN.name)
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "mnist", "uid": RUN.id, "controller": True}
Refuse = Callable[[str, Mapping[str, Any]], ApiError | None]


@dataclass
class Server:
    """The Leases, and what is refused: ``refuse`` gets the verb and what is written."""

    leases: Leases = field(default_factory=Leases)
    refuse: Refuse = lambda *_: None
    written: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def allow(self, verb: str, body: Mapping[str, Any] = {}) -> None:
        self.written.append((verb, body))
        error = self.refuse(verb, body)
        if error is not None:
            raise error

    def asked(self, verb: str) -> int:
        return sum(one == verb for one, _ in self.written)


class Api(MemoryApi):
    """``HttpListApi`` on a ``Server``; the one pod is that of a Job."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.leases)
        self._server = server

    def create(self, lease: Mapping[str, Any]) -> Lease:
        self._server.allow("create", lease)
        name = lease["metadata"]["name"]
        if name in self._server.leases.leases:
            raise Conflict("it exists", 409)
        return self._write(name, lease)

    def patch(self, name: str, patch: Mapping[str, Any]) -> Lease:
        self._server.allow("patch", patch)
        lease = super().patch(name, patch)
        released = patch["spec"]["holderIdentity"] is None
        return self._leases.put(name, {}, "another") if released else lease

    def follow_leases(self, label: str, value: str) -> Iterator[list[Mapping[str, Any]] | None]:
        del label, value
        self._server.allow("list")
        yield [body(name, lease) for name, lease in self._server.leases.leases.items()]
        self._server.allow("watch")
        while not self._stopped:
            yield None
            with self._leases.changed:
                self._leases.changed.wait(0.2)

    def follow_pods(self, label: str, value: str) -> Iterator[list[Mapping[str, Any]] | None]:
        del label, value
        yield [{"metadata": {"name": ME.pod, "uid": ME.uid, "ownerReferences": [JOB]}}]
        while not self._stopped:
            yield None
            with self._leases.changed:
                self._leases.changed.wait(0.2)

    follow_pod = follow_pods


def body(name: str, lease: Lease) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": lease.resource_version, "annotations": lease.annotations}
    return {"metadata": metadata, "spec": {"holderIdentity": lease.holder}}


@pytest.fixture
def server() -> Server:
    """This participant has announced itself."""
    made = Server()
    record = ParticipantRecord("id-1", "Joining", "10.0.0.1:1", seen_job_uid=RUN.id)
    peer = PeerRecord(RUN.id, 0, 1, 1)
    made.leases.put(
        ME.pod, {names.PARTICIPANT_ANNOTATION: record.dump(), PEER_ANNOTATION: peer.dump()}, ME.uid
    )
    return made


@pytest.fixture
def source(server: Server) -> Iterator[PeerSource]:
    made = PeerSource(RUN, ME, 0, Limits(), lambda: cast(HttpListApi, Api(server)), lambda _: None)
    made.said({"participant": server.leases.leases[ME.pod].annotations[names.PARTICIPANT_ANNOTATION]})
    yield made
    made.stop()


def in_a_round(server: Server) -> bool:
    lease = server.leases.leases.get(NAME)
    if lease is None:
        return False
    seen = read_round(lease)
    return Settled.parse(seen.record, seen.state).state.active


def until(found: Callable[[], bool], what: str) -> None:
    wait_for(found, 60, what, interval=0.01)


def test_the_job_owns_the_round_lease(server: Server, source: PeerSource) -> None:
    source.start()
    until(lambda: in_a_round(server), "a round begins")
    owned = [one["metadata"].get("ownerReferences") for verb, one in server.written if verb == "patch"]
    assert owned[0] == [{key: JOB[key] for key in ("apiVersion", "kind", "name", "uid")}]


def test_each_write_of_the_round_lease_has_the_version_and_the_label(
    server: Server, source: PeerSource
) -> None:
    """P1, with the version that was decided on. And a label that was taken off by hand stands again: without
    it the Lease is not seen by those that list by it. Without the owner, too, where that is refused."""

    def refuse(verb: str, written: Mapping[str, Any]) -> ApiError | None:
        owned = verb == "patch" and "ownerReferences" in written["metadata"]
        return Forbidden("cannot set an ownerRef on a resource you can't delete", 403) if owned else None

    server.refuse = refuse
    source.start()
    until(lambda: in_a_round(server), "a round begins")
    written = [(verb, one["metadata"]) for verb, one in server.written if verb in ("create", "patch")]
    assert {verb for verb, _ in written} == {"create", "patch"}
    assert all(one["labels"] == {RUN_LABEL: RUN.name} for _, one in written)
    assert all(one["resourceVersion"] for verb, one in written if verb == "patch")


def test_a_late_write_of_the_round_lease_is_a_conflict(server: Server, source: PeerSource) -> None:
    """P1: another has written since this one decided, with a version that ``_patch`` sends as it is."""
    settled = Settled.first(RUN, Limits())
    annotations = round_body(settled, "", "pod-1_uid-1", 1, {})["metadata"]["annotations"]
    decided_on = server.leases.put(NAME, annotations, "pod-1_uid-1").resource_version
    server.leases.put(NAME, annotations, "pod-2_uid-2")
    late = Write(settled, "late", decided_on)
    with pytest.raises(Conflict):
        source._patch(late)
    with pytest.raises(Conflict):
        source._patch(replace(late, release=True))
    source._write(late)
    assert server.leases.leases[NAME].holder == "pod-2_uid-2"
    assert isinstance(source._seat.step(0.0, None), Read)


def test_a_run_without_a_job_takes_the_former_job_off_the_round_lease(server: Server) -> None:
    """Otherwise the garbage collector deletes it in the middle of the run: its owner is gone."""
    run = Run("mnist", "run-2", 1, 1)
    peer = PeerRecord(run.id, 0, 1, 1)
    own = server.leases.leases[ME.pod].annotations[names.PARTICIPANT_ANNOTATION]
    server.leases.put(ME.pod, {names.PARTICIPANT_ANNOTATION: own, PEER_ANNOTATION: peer.dump()}, ME.uid)
    before = Settled.first(RUN, Limits())
    over = replace(before, state=replace(before.state, phase="Closed"), outcome="Complete")
    server.leases.put(NAME, round_body(over, "", "", 1, {})["metadata"]["annotations"])
    source = PeerSource(run, ME, 0, Limits(), lambda: cast(HttpListApi, Api(server)), lambda _: None)
    source.said({"participant": own})
    source.start()

    def patches() -> list[Mapping[str, Any]]:
        return [one["metadata"] for verb, one in server.written if verb == "patch"]

    until(lambda: len(patches()) > 1, "the Lease is taken, and written again")
    source.stop()
    assert patches()[0]["ownerReferences"] == []
    assert "ownerReferences" not in patches()[1], "what people add later stays"


def test_a_pod_that_comes_after_its_run_hears_how_it_has_ended(server: Server) -> None:
    """Another run has followed it."""
    other = replace(Settled.first(Run("mnist", "run-2", 1, 1), Limits()), former=((RUN.id, "Complete"),))
    written = round_body(other, "", "pod-9_uid-9", 1, {})["metadata"]["annotations"]
    server.leases.put(NAME, written, "pod-9_uid-9")
    records: list[RoundRecord] = []
    source = PeerSource(RUN, ME, 0, Limits(), lambda: cast(HttpListApi, Api(server)), records.append)
    source.start()
    until(lambda: any(r.outcome == "Complete" and r.job_uid == RUN.id for r in records), "it is complete")
    source.stop()


def test_one_that_waits_for_another_run_of_its_name_says_so_at_once_and_once(
    server: Server, source: PeerSource, caplog: pytest.LogCaptureFixture
) -> None:
    other = replace(Settled.first(Run("mnist", "run-2", 1, 1), Limits()), unsure=True)
    written = round_body(other, "", "pod-9_uid-9", 1, {})["metadata"]["annotations"]
    peer = PeerRecord("run-2", 0, 1, 1)
    server.leases.put("pod-9", {PEER_ANNOTATION: peer.dump()}, "uid-9")
    assert source.obstacle == ""
    for _ in range(2):
        server.leases.put(NAME, written, "pod-9_uid-9")
        source._do(Read())
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert told == [f"waiting: {source.obstacle}"]
    assert "run run-2 has the name mnist (its coordinator: pod-9)" in source.obstacle


def test_a_process_that_has_started_after_one_that_ended_well_has_not_finished(
    source: PeerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same pod: its state is late, and its end is no proof any more."""
    monkeypatch.setattr(Pods, "gone", lambda *_: {"uid-ended": "its container has ended with exit code 0"})
    monkeypatch.setattr(Pods, "finished", lambda _: frozenset({"uid-ended", "uid-again"}))
    source._leases = cast(
        directory.Directory, SimpleNamespace(objects=dict, stop=lambda: None, failed_seconds=lambda: 0.0)
    )
    sight = source._sight()
    assert sight is not None
    assert sight.finished == {"uid-ended"}
    source._leases = None


@pytest.mark.parametrize(("minimum", "maximum", "times"), [(1, 1, 0), (1, 2, 1), (2, 2, 1)])
def test_bounds_that_are_not_those_of_the_run_are_told_once(
    server: Server, caplog: pytest.LogCaptureFixture, minimum: int, maximum: int, times: int
) -> None:
    """Those of the pod that made the round Lease count."""
    settled = Settled.first(RUN, Limits())
    run = replace(RUN, minimum=minimum, maximum=maximum)
    source = PeerSource(run, ME, 0, Limits(), lambda: cast(HttpListApi, Api(server)), lambda _: None)
    for holder in ("pod-1_uid-1", "pod-2_uid-2"):
        server.leases.put(NAME, round_body(settled, "", holder, 1, {})["metadata"]["annotations"], holder)
        source._do(Read())
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == times
    for text in told:
        assert f"--nnodes is {minimum}:{maximum} here, but run run-1 began with 1:1" in text


def test_an_agent_hears_what_its_seat_has_read_though_the_watch_brings_nothing(server: Server) -> None:
    table = Table()
    table.train("pod-0", "pod-1")
    server.leases.put(NAME, round_body(table.settled, "", "pod-1_uid-1", 1, {})["metadata"]["annotations"])
    records: list[RoundRecord] = []
    source = PeerSource(RUN, ME, 0, Limits(), lambda: cast(HttpListApi, Api(server)), records.append)
    source._do(Read())
    assert [record.number for record in records] == [1]


def test_where_owners_may_not_be_changed_the_round_lease_has_none(
    server: Server, source: PeerSource, caplog: pytest.LogCaptureFixture
) -> None:
    """The admission plugin OwnerReferencesPermissionEnforcement, as OpenShift has it: 403 to each PATCH that
    adds one, because pods may not delete Leases."""

    def refuse(verb: str, written: Mapping[str, Any]) -> ApiError | None:
        owned = verb == "patch" and "ownerReferences" in written["metadata"]
        return Forbidden("cannot set an ownerRef on a resource you can't delete", 403) if owned else None

    server.refuse = refuse
    caplog.set_level(logging.INFO)
    source.start()
    until(lambda: in_a_round(server), "a round begins")
    assert sum("ownerReferences" in one["metadata"] for _, one in server.written if one) == 1
    assert source.auth_errors.seconds(Forbidden) == 0
    assert sum("can't delete" in record.getMessage() for record in caplog.records) == 1


def test_reads_that_are_allowed_say_nothing_of_writes_that_are_not(
    server: Server, source: PeerSource
) -> None:
    server.refuse = lambda verb, _: Forbidden("leases is forbidden", 403) if verb == "patch" else None
    source.start()
    until(lambda: source.auth_errors.seconds(Forbidden) > 0.5, "it is refused again and again")
    assert "leases is forbidden" in source.last_error
    source.auth_errors.forget()
    server.refuse = lambda *_: None
    until(lambda: in_a_round(server), "a round begins")
    until(lambda: not source.auth_errors.refused(Forbidden) and source.last_error == "", "all is well")


@pytest.mark.parametrize(
    "error", [Forbidden("exceeded quota: leases", 403), Unauthorized("Unauthorized", 401)]
)
def test_a_refused_write_that_another_has_made_needless_is_forgotten(
    server: Server, source: PeerSource, error: ApiError
) -> None:
    """A quota that is used up refuses the POST also while the Lease exists: it is never tried again."""
    server.refuse = lambda verb, _: error if verb == "create" else None
    source.start()
    until(lambda: source.last_error == str(error), "the POST is refused")
    assert source.auth_errors.refused(type(error))
    settled = Settled.first(RUN, Limits())
    server.leases.put(
        NAME, round_body(settled, "", "pod-1_uid-1", 1, {})["metadata"]["annotations"], "pod-1_uid-1"
    )
    until(lambda: source.last_error == "", "it follows the other")
    assert not source.auth_errors.refused(type(error))


class Told:
    """In the place of ``hear_nothing``: the pauses."""

    def __init__(self, source: PeerSource, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        monkeypatch.setattr(
            source._seat, "hear_nothing", lambda _, pause: self.pauses.append(round(pause, 9))
        )
        monkeypatch.setattr("random.uniform", lambda *_: 1.0)


def test_pauses_after_failures_in_a_row_double(
    server: Server, source: PeerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All participants of a run ask an API server that is coming back. Reads that are answered say nothing of
    writes that fail."""
    told, write = Told(source, monkeypatch), Write(Settled.first(RUN, Limits()))
    server.leases.error = Unavailable("no answer")
    for _ in range(6):
        source._do(Read())
    assert told.pauses == [0.3, 0.6, 1.2, 2.4, 4.8, 5.0]
    server.leases.error = None
    source._do(Read())
    told.pauses.clear()
    for error in (Unavailable("busy", 503), Unavailable("busy", 429, 7.0), Forbidden("no", 403)):
        server.refuse = lambda verb, _, error=error: error if verb == "create" else None  # type: ignore[misc]
        source._do(write)
        source._do(Read())
    assert told.pauses == [0.3, 7.0, 1.2]
    server.refuse = lambda *_: None
    source._do(write)
    told.pauses.clear()
    server.leases.error = Unavailable("no answer")
    source._do(Write(write.settled, version=server.leases.leases[NAME].resource_version))
    source._do(Read())
    assert told.pauses == [0.3, 0.3]


class Waits(threading.Event):
    """Set when it is first waited for; ``seconds`` is for how long."""

    seconds: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds = timeout
        self.set()
        return True


def test_a_list_and_a_watch_that_are_refused_wait_for_as_long_as_they_are_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, made = Unavailable("busy", 429, 60.0), Waits()
    server.refuse = lambda *_: busy
    server.leases.error = busy
    api = cast(HttpListApi, Api(server))
    with monkeypatch.context() as patched:
        words = SimpleNamespace(Event=lambda: made, Lock=threading.Lock, Thread=threading.Thread)
        patched.setattr(directory, "threading", words)
        directory.Directory(api, lambda api: api.follow_leases("", ""), "leases", lambda: None)
    watch = LeaseRoundSource(api, api, "job", lambda _: None)
    watch._stop = Waits()
    watch.start()
    for waits in (made, watch._stop):
        until(waits.is_set, "it pauses")
        assert (waits.seconds or 0.0) >= 0.8 * 60.0


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_coordinator_that_may_not_list_knows_it_after_it_was_replaced(
    server: Server, source: PeerSource, verb: str
) -> None:
    """It is replaced before ten seconds are over, which it takes to say so."""
    server.refuse = lambda asked, _: Forbidden("leases is forbidden", 403) if asked == verb else None
    source.start()
    until(lambda: source.auth_errors.seconds(Forbidden) > 0, "it is refused again")
    server.leases.put("pod-1", {}, "uid-1")
    server.leases.put(NAME, {}, "pod-1_uid-1")
    until(lambda: not source._seat.coordinates, "it was replaced")
    asked = server.asked(verb)
    until(lambda: server.asked(verb) > asked, "it asks on")
    assert not source._seat.coordinates
    assert source.auth_errors.seconds(Forbidden) > 0
    assert "leases is forbidden" in source.last_error
    server.refuse = lambda *_: None
    until(lambda: not source.auth_errors.refused(Forbidden), "it may")


def test_an_agent_hears_what_its_own_seat_has_written(server: Server) -> None:
    """Its watch may hang, and the Lease may be deleted: its own Lease then says how far the run was."""
    heard: list[RoundRecord] = []
    source = PeerSource(RUN, ME, 0, Limits(), lambda: cast(HttpListApi, Api(server)), heard.append)
    step = source._seat.step(0.0, None)
    assert isinstance(step, Write)
    source._write(step)
    assert [record.number for record in heard] == [step.settled.state.number]
