"""The port of an agent is open to the network: what a stranger or a member that lies can do to it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest

from devcluster.wait import wait_for
from elasticjob.memory import door, fetching, wire
from elasticjob.memory.shelf import make_buffer
from tests.unit.memory.agents import SIZE, Pod, begin, content, copied, dial, held_of, name_of, refusal, save
from tests.unit.memory.peers import member

MakePod = Callable[..., Pod]


def stranger(pod: Pod) -> socket.socket:
    return socket.create_connection(("127.0.0.1", pod.service.port))


def counted(pod: Pod) -> tuple[int, int]:
    members = pod.service._members
    assert members is not None
    return members.door.count()


def closed(sock: socket.socket) -> bool:
    """Whether the agent has closed it, also with what was sent unread."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_strangers_take_no_threads_and_few_descriptors_and_hold_up_no_copy(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a, b)
    worker, threads = a.worker(), threading.active_count()
    strangers = [stranger(b) for _ in range(2 * door.MOST_CALLERS)]
    try:
        wait_for(lambda: counted(b)[0] == door.MOST_CALLERS, 60, "they are accepted", interval=0.01)
        assert closed(strangers[0]), "the oldest had to make room"
        assert threading.active_count() <= threads + 1, "one for the worker"
        save(worker, name_of(1, 3))
        assert copied(worker, name_of(1, 3)) == ""
        assert counted(b)[0] <= door.MOST_CALLERS
    finally:
        for sock in strangers:
            sock.close()


def test_the_whole_line_has_one_deadline(pods: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not hold a place for ever."""
    monkeypatch.setattr(door, "GREETING_SECONDS", 0.3)
    pod = pods()
    begin(1, pod)
    with stranger(pod) as sock:
        sock.settimeout(0.05)
        for _ in range(door.LONGEST_LINE // 2):
            try:
                sock.sendall(b"x")
                if sock.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    raise AssertionError("it is still there")


@pytest.mark.parametrize(
    "line", [b"x" * 1000, b"\xff\xfe\n", b"\n", "tökën of 1\n".encode(), b"token of 2\n"]
)
def test_a_wrong_line_ends_the_connection_and_nothing_else(pods: MakePod, line: bytes) -> None:
    pod = pods()
    begin(1, pod)
    with stranger(pod) as sock:
        sock.sendall(line)
        assert closed(sock)
    with dial(pod.address, "token of 1") as sock:
        wire.send(sock, {"what": "get", "name": name_of(1, 3).fields()})
        assert "not held here" in wire.receive(sock)["refused"]


def test_what_follows_the_line_at_once_is_read(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    with stranger(pod) as sock:
        message = b'{"what": "get", "name": ["job", "f", 1, 1, 1, 1, 1, 0]}'
        sock.sendall(b"token of 1\n" + wire.LENGTH.pack(len(message)) + message)
        assert "refused" in wire.receive(sock)


def test_more_members_than_are_served_at_once_wait(pods: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_SERVED", 2)
    pod = pods()
    begin(1, pod)
    first, second, third = (dial(pod.address, "token of 1") for _ in range(3))
    with first, second, third:
        wait_for(lambda: counted(pod) == (1, 2), 60, "one waits", interval=0.01)
        wire.send(third, {"what": "get", "name": name_of(1, 3).fields()})
        for sock in (first, second):
            sock.shutdown(socket.SHUT_RDWR)
        assert "refused" in wire.receive(third)


def test_a_message_that_is_nested_too_deeply_ends_the_connection(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    with dial(pod.address, "token of 1") as sock:
        sock.sendall(wire.LENGTH.pack(200_000) + b"[" * 200_000)
        assert closed(sock)
    wait_for(lambda: counted(pod) == (0, 0), 60, "the end of its thread", interval=0.01)


def test_to_make_a_buffer_holds_up_no_other_request(pods: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """To allocate gigabytes takes seconds, and it is another member that asks for them."""
    making, go_on = threading.Event(), threading.Event()

    def slow(size: int) -> int:
        making.set()
        assert go_on.wait(60)
        return make_buffer(size)

    monkeypatch.setattr(fetching, "make_buffer", slow)
    pod = pods(limit=2 * SIZE)
    begin(1, pod)
    header = {"what": "put", "name": name_of(1, 9).fields(), "size": SIZE, "kept": [], "complete": None}
    worker = pod.worker()
    with dial(pod.address, "token of 1") as sock:
        wire.send(sock, header)
        assert making.wait(60)
        assert not worker.state_of(None).off
        assert pod.held_bytes() == SIZE, "the room is taken already"
        assert "a pod may hold" in refusal(lambda: worker.lend(0, 2 * SIZE, None, ()))
        go_on.set()
        assert wire.receive(sock) == {}


# -- a member that lies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 50, SIZE + 1, SIZE - 1, -1, "1", None, True])
def test_a_piece_of_another_size_than_was_said_takes_no_memory(pods: MakePod, size: object) -> None:
    asked: list[int] = []
    pod = pods(gate=lambda size: asked.append(size) or "")  # type: ignore[func-returns-value]
    begin(1, pod)
    worker = pod.worker()
    with member(lambda sock: wire.send(sock, {"size": size})) as address:
        why = refusal(lambda: worker.fetch(held_of(name_of(1, 3)), address, 60))
    assert f"expected {SIZE:,}" in why
    assert asked == []


def test_a_piece_with_another_checksum_than_was_said_is_refused(pods: MakePod) -> None:
    def other(sock: socket.socket) -> None:
        wire.send(sock, {"size": SIZE})
        sock.sendall(b"\4" * SIZE + wire.CRC32.pack(held_of(name_of(1, 4)).crc32))

    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    with member(other) as address:
        assert "has the checksum" in refusal(lambda: worker.fetch(held_of(name_of(1, 3)), address, 60))
    assert pod.keeper._fetched._pieces == {}


def test_a_member_that_sends_a_few_bytes_now_and_then_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "STUCK_SECONDS", 0.1)
    monkeypatch.setattr(wire, "SLOWEST", 1 << 40)
    near, far = socket.socketpair()
    descriptor, over = make_buffer(SIZE), threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            far.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with near, far:
        with pytest.raises(TimeoutError, match="too slow"):
            wire.receive_piece(near, descriptor, SIZE)
        over.set()
        thread.join()
        os.close(descriptor)


def test_no_member_writes_over_a_piece_that_is_held(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    save(worker, name_of(1, 3))
    header = {"what": "put", "name": name_of(1, 3).fields(), "size": SIZE, "kept": [], "complete": None}
    with dial(pod.address, "token of 1") as sock:
        wire.send(sock, header)
        assert "held here already" in wire.receive(sock)["refused"]
    assert "held here already" in refusal(lambda: save(worker, name_of(1, 3)))
    assert content(worker.lease(name_of(1, 3))) == {3}
