"""What is under way between two agents when a round ends is cut, and what comes later is not kept."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devcluster.wait import wait_for
from elasticjob.memory import client, fetching, keeper, serving, wire
from elasticjob.memory.fetching import Fetched, no_way
from elasticjob.memory.link import Link
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.shelf import make_buffer
from tests.unit.memory.agents import SIZE, Pod, begin, content, copied, held_of, name_of, refusal, save
from tests.unit.memory.peers import member

MakePod = Callable[..., Pod]


def test_cutting_leaves_the_descriptor_to_its_owner() -> None:
    """Closed by another thread it could be another file's by the time that the owner uses it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link()
        sock = link.open(f"127.0.0.1:{listener.getsockname()[1]}", "token")
        descriptor = sock.fileno()
        link.cut()
        assert sock.fileno() == descriptor
        os.fstat(descriptor)
        assert sock.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            wire.send(sock, {})
        link.close()
        assert sock.fileno() == -1


def test_a_connection_that_is_being_made_can_be_cut() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        where = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(where)
        link = Link()
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(link.open, f"127.0.0.1:{where[1]}", "token")
            wait_for(lambda: link._sock is not None, 60, "it connects", interval=0.001)
            link.cut()
            error = opening.exception()
        assert isinstance(error, ConnectionError), error
        for filler in fillers:
            filler.close()


def test_what_was_cut_before_it_connects_does_not_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link()
        link.cut()
        with pytest.raises(ConnectionAbortedError):
            link.open(f"127.0.0.1:{listener.getsockname()[1]}", "token")


def test_a_copy_to_a_member_that_does_not_read_ends_with_the_round(pods: MakePod) -> None:
    taken, over = threading.Event(), threading.Event()

    def silent(_: socket.socket) -> None:
        taken.set()
        over.wait(60)

    pod = pods()
    with member(silent) as address:
        pod.enter(1)
        pod.meet("token", address)
        save(pod.worker(), name_of(1, 3))
        assert taken.wait(60)
        pod.enter(2)
        pod.meet("token of 2")
        worker = pod.worker()
        save(worker, name_of(2, 4))
        assert copied(worker, name_of(2, 4)) == "", "the thread is free again"
        over.set()


def test_no_connection_is_made_for_a_round_that_is_over(pods: MakePod) -> None:
    """``cut`` has come before the link was there."""
    pod, other = pods(), pods()
    begin(1, pod, other)
    former = pod.keeper._round
    begin(2, pod, other)
    with pytest.raises(RefusedError, match="is over"):
        pod.service._copies._connected(former, other.address, "token of 1")


def test_a_piece_that_is_being_got_when_a_new_round_begins_is_cut(pods: MakePod) -> None:
    asked, over = threading.Event(), threading.Event()

    def silent(sock: socket.socket) -> None:
        wire.send(sock, {"size": SIZE})
        sock.sendall(b"\3")
        asked.set()
        over.wait(60)

    pod, other = pods(), pods()
    begin(1, pod, other)
    zombie = pod.worker()
    with member(silent) as address, ThreadPoolExecutor(1) as pool:
        late = pool.submit(lambda: refusal(lambda: zombie.fetch(held_of(name_of(1, 3)), address, 60)))
        assert asked.wait(60)
        begin(2, pod, other)
        save(other.worker(), name_of(2, 4))
        descriptor = pod.worker().fetch(held_of(name_of(2, 4)), other.address, 60)
        assert content(descriptor) == {4}, "it waits for no piece of the round before"
        assert "was let go of" in late.result()
        over.set()
    assert {held.name for held, _ in pod.keeper._fetched._pieces} == {name_of(2, 4)}


# -- a worker waits for its agent --------------------------------------------------------------------------


def hear_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for a second, and hears much more often that its answer is under way."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 1)
    monkeypatch.setattr(serving, "UNDER_WAY_SECONDS", 0.1)


def test_a_worker_waits_for_a_piece_as_long_as_it_is_under_way(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for those that its agent gets before: it gets one at a time."""
    hear_soon(monkeypatch)
    receive_piece = wire.receive_piece

    def slowly(sock: socket.socket, descriptor: int, size: int) -> int:
        time.sleep(1.5)
        return receive_piece(sock, descriptor, size)

    pod, other = pods(), pods()
    begin(1, pod, other)
    for rank in (0, 1):
        save(other.worker(), name_of(1, 3, rank, 2))
        assert copied(other.worker(), name_of(1, 3, rank, 2)) == ""
    monkeypatch.setattr(wire, "receive_piece", slowly)
    with ThreadPoolExecutor(2) as pool:
        getting = [
            pool.submit(pod.worker().fetch, held_of(name_of(1, 3, rank, 2)), other.address, 60)
            for rank in (0, 1)
        ]
        assert [content(one.result()) for one in getting] == [{3}, {3}]


def test_a_buffer_that_takes_long_to_make_is_waited_for_by_a_worker_and_by_a_member(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory was off on all ranks after 120 s, and a copy has failed after 30."""
    hear_soon(monkeypatch)
    limit_waits = wire.limit_waits
    monkeypatch.setattr(wire, "limit_waits", lambda sock, seconds=1: limit_waits(sock, seconds))

    def slowly(size: int) -> int:
        time.sleep(1.5)
        return fetching.made(size)

    pod, other = pods(), pods()
    begin(1, pod, other)
    worker = pod.worker()
    monkeypatch.setattr(keeper, "made", slowly)
    save(worker, name_of(1, 3))
    wait_for(lambda: worker.state_of(name_of(1, 3)).ended, 60, "it is not copied")
    assert worker.state_of(name_of(1, 3)).why == ""
    assert other.held() == ["(1.3.0)"]


def test_a_member_that_makes_a_buffer_for_ever_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "STUCK_SECONDS", -1)
    near, far = socket.socketpair()
    with near, far:
        wire.send(far, wire.UNDER_WAY)
        with pytest.raises(TimeoutError, match="too slow"):
            wire.receive_answer(near, SIZE)


def test_after_an_answer_that_did_not_come_a_worker_asks_again(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another holder has the piece, and there is the save before."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 1)
    pod, other = pods(), pods()
    begin(1, pod, other)
    save(pod.worker(), name_of(1, 3))
    worker, over = pod.worker(), threading.Event()
    opening = worker.opening

    def stuck(*_: object) -> int:
        over.wait(60)
        raise RefusedError("too late")

    with monkeypatch.context() as patch:
        patch.setattr(Fetched, "get", stuck)
        said = refusal(lambda: worker.fetch(held_of(name_of(1, 3)), other.address, 60))
        assert said == "torchrun does not answer: there was no progress for 1 s"
        over.set()
    assert content(worker.lease(name_of(1, 3))) == {3}
    assert worker.opening == opening
    worker.close()
    assert "does not answer" in refusal(lambda: worker.lease(name_of(1, 3))), "it was closed for good"


@pytest.mark.parametrize("failures", [2, 3])
def test_a_connection_that_breaks_is_tried_twice_more(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """After the loss of a pod one agent alone has its piece: a short interruption cost all steps since the
    last save of the folder."""
    monkeypatch.setattr(fetching, "RETRY_PAUSES", (0.0, 0.0))
    pod, other = pods(), pods()
    begin(1, pod, other)
    save(other.worker(), name_of(1, 3))
    broken, whole = iter(range(failures)), Fetched._receive

    def received(*given: Any) -> int:
        if next(broken, None) is not None:
            raise ConnectionResetError("reset")
        return whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Fetched, "_receive", received)
        worker = pod.worker()
        if failures == 2:
            assert content(worker.fetch(held_of(name_of(1, 3)), other.address, 60)) == {3}
        else:
            assert "reset" in refusal(lambda: worker.fetch(held_of(name_of(1, 3)), other.address, 60))


def test_a_member_that_is_silent_is_waited_for_no_longer_than_the_ranks_wait(pods: MakePod) -> None:
    """Those that need no piece from others would give up meanwhile, and the round with them."""
    over = threading.Event()
    pod, other = pods(), pods()
    begin(1, pod, other)
    save(other.worker(), name_of(1, 3))
    with member(lambda _: over.wait(60)) as silent:
        said = refusal(lambda: pod.worker().fetch(held_of(name_of(1, 3)), silent, 0.2))
        assert said.endswith(f"did not come from {silent}: it was not there in time")
        over.set()
    assert content(pod.worker().fetch(held_of(name_of(1, 3)), other.address, 60)) == {3}
    assert content(pod.worker().fetch(held_of(name_of(1, 3)), other.address, 0)) == {3}, "it is here"


def test_who_waits_for_the_pieces_of_others_waits_no_longer_either(pods: MakePod) -> None:
    pod, other = pods(), pods()
    begin(1, pod, other)
    with pod.keeper._fetched._one:
        said = refusal(lambda: pod.worker().fetch(held_of(name_of(1, 3)), other.address, 0.1))
    assert said.endswith("was not asked for: other pieces took all of the time")


def test_a_member_that_has_failed_is_asked_for_no_more_pieces_in_this_resume(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt may take minutes."""
    monkeypatch.setattr(fetching, "RETRY_PAUSES", (0.0, 0.0))
    pod, other = pods(), pods()
    begin(1, pod, other)
    worker, asked = pod.worker(), list[int]()

    def breaks(sock: socket.socket) -> None:
        asked.append(1)
        raise ConnectionResetError(f"{sock} breaks")

    with member(breaks) as address:
        assert "was closed" in refusal(lambda: worker.fetch(held_of(name_of(1, 3)), address, 60))
        assert len(asked) == 3
        said = refusal(lambda: worker.fetch(held_of(name_of(1, 2)), address, 60))
        assert said.endswith(f"{address} is asked no more, it has failed: the connection was closed")
        assert len(asked) == 3
        worker.resumed("f", None, 1)
        refusal(lambda: worker.fetch(held_of(name_of(1, 2)), address, 60))
        assert len(asked) == 6


def test_a_member_that_had_hardly_any_time_has_not_failed(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has used it up."""
    over = threading.Event()
    pod, other = pods(), pods()
    begin(1, pod, other)
    worker = pod.worker()
    with member(lambda _: over.wait(60)) as address:
        for stuck, failed in ((60, set[str]()), (0, {address})):
            monkeypatch.setattr(wire, "STUCK_SECONDS", stuck)
            assert "in time" in refusal(lambda: worker.fetch(held_of(name_of(1, 3)), address, 0.1))
            assert set(pod.keeper._fetched._failed) == failed
        over.set()


def test_workers_that_ask_at_once_have_the_checksums_computed_once(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pods()
    pod.enter(1)  # it has not met the others, so that nothing is copied, and no checksum known
    save(pod.worker(), name_of(1, 3))
    pod.meet("token")
    pod.keeper._waiting.clear()
    for piece in pod.keeper._shelf.pieces.values():
        piece.crc32 = None
    computed, once = [], wire.checksum

    def slow(descriptor: int, size: int) -> int:
        computed.append(descriptor)
        time.sleep(0.2)
        return once(descriptor, size)

    monkeypatch.setattr(wire, "checksum", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: pod.keeper.inventory(pod.key), range(4)))
    assert len(computed) == 1
    assert [len(one.held) for one in found] == [1] * 4


def test_checksums_that_cannot_be_computed_leave_no_descriptor_open(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pods()
    pod.enter(1)
    for rank in range(3):
        save(pod.worker(), name_of(1, 3, rank, 3))
    pod.meet("token")
    pod.keeper._waiting.clear()
    for piece in pod.keeper._shelf.pieces.values():
        piece.crc32 = None
    dup, made = os.dup, list[int]()

    def noted(descriptor: int) -> int:
        made.append(dup(descriptor))
        return made[-1]

    def fails(descriptor: int, size: int) -> int:
        raise OSError(f"no memory to map {size} bytes of {descriptor}")

    monkeypatch.setattr(os, "dup", noted)
    monkeypatch.setattr(wire, "checksum", fails)
    with pytest.raises(OSError, match="no memory"):
        pod.keeper.inventory(pod.key)
    assert len(made) == 3
    assert not [one for one in made if os.path.exists(f"/proc/self/fd/{one}")]


def test_an_answer_that_comes_after_its_round_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = Fetched(lambda _: "", no_way)

    def late(*_: object) -> int:
        fetched.forget()
        return make_buffer(SIZE)

    monkeypatch.setattr(Fetched, "_receive", late)
    with pytest.raises(RefusedError, match="let go of"):
        fetched.get(fetched.epoch, held_of(name_of(1, 3)), "127.0.0.1:1", "token", 60)
    assert fetched._pieces == {}
    with pytest.raises(RefusedError, match="let go of"):
        fetched.get(0, held_of(name_of(1, 3)), "127.0.0.1:1", "token", 60)
