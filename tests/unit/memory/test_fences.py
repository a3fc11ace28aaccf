"""The rules of a round: what is refused, and what outlives what. Real sockets, real memory."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest

from elasticjob.memory import decide, wire
from elasticjob.memory.client import Agent, AgentError
from elasticjob.memory.pieces import Save
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.shelf import make_buffer
from tests.unit.memory.agents import SIZE, Pod, begin, content, copied, dial, held_of, name_of, refusal, save

MakePod = Callable[..., Pod]


# -- 1: only the present round -----------------------------------------------------------------------------


def test_a_worker_left_behind_by_an_earlier_round_is_refused(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    zombie = pod.worker()
    descriptor = zombie.lend(0, SIZE, None, ())
    begin(2, pod)

    assert "round is over" in refusal(lambda: zombie.take(name_of(1, 5), SIZE, descriptor))
    assert "round is over" in refusal(lambda: zombie.take(name_of(2, 5), SIZE, descriptor))
    assert "round is over" in refusal(lambda: zombie.lend(0, SIZE, None, ()))
    assert "round is over" in refusal(lambda: zombie.resumed("f", None, 1))
    os.close(descriptor)
    assert pod.held() == []


def test_a_worker_that_comes_late_with_the_key_of_an_earlier_round_is_refused(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    earlier = pod.where
    begin(2, pod)

    assert "round is over" in refusal(lambda: Agent(earlier))


def test_a_worker_saves_nothing_in_the_name_of_another_round_or_job(pods: MakePod) -> None:
    pod = pods()
    begin(2, pod)
    worker = pod.worker()

    for name in (name_of(1, 5), name_of(3, 5), name_of(2, 5)._replace(job="another")):
        assert "not of round 2" in refusal(lambda name=name: save(worker, name))  # type: ignore[misc]
    assert pod.held() == []


def test_a_pod_that_was_cut_off_is_refused_and_what_it_copied_before_stays(pods: MakePod) -> None:
    cut_off, other, third = pods(), pods(), pods()
    begin(1, cut_off, other)
    worker = cut_off.worker()
    save(worker, name_of(1, 3))
    assert copied(worker, name_of(1, 3)) == ""
    begin(2, other, third)

    save(worker, name_of(1, 4))

    assert "was not copied" in copied(worker, name_of(1, 4))
    assert other.held() == ["(1.3.0)"]


def test_a_stranger_learns_and_stores_nothing(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    save(pod.worker(), name_of(1, 3))

    with dial(pod.address, "a guess") as sock:
        assert sock.recv(1) == b""
    assert "round is over" in refusal(lambda: Agent(f"{pod.where.rpartition(':')[0]}:a guess"))


def test_a_member_that_has_met_the_others_earlier_is_waited_for(pods: MakePod) -> None:
    early, late = pods(), pods()
    early.enter(1)
    late.enter(1)
    early.meet("token", late.address)
    worker = early.worker()
    save(worker, name_of(1, 3))
    threading.Timer(0.2, lambda: late.meet("token", early.address)).start()

    assert copied(worker, name_of(1, 3)) == ""
    assert late.held() == ["(1.3.0)"]


def test_another_job_s_pieces_are_let_go_of(pods: MakePod) -> None:
    pod = pods()
    begin(5, pod)
    save(pod.worker(), name_of(5, 3))

    pod.enter(1, job="applied again")

    assert pod.held() == []


# -- 2: only members are asked -----------------------------------------------------------------------------


def test_a_pod_that_is_no_member_gives_nothing_away(pods: MakePod) -> None:
    cut_off, member = pods(), pods()
    begin(1, cut_off, member)
    save(cut_off.worker(), name_of(1, 3))
    begin(2, member)

    worker = member.worker()

    assert "did not come" in refusal(lambda: worker.fetch(held_of(name_of(1, 3)), cut_off.address, 60))


# -- 3: pieces do not change; what was cut has no name -----------------------------------------------------


def test_a_copy_that_is_cut_in_the_middle_does_not_count(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    header = {"what": "put", "name": name_of(1, 9).fields(), "size": SIZE, "kept": [], "complete": None}
    everything = b"x" * SIZE + b"\0" * wire.CRC32.size
    for sent in (0, 1, SIZE - 1, SIZE, SIZE + wire.CRC32.size - 1):
        with dial(pod.address, "token of 1") as sock:
            wire.send(sock, header)
            assert wire.receive(sock) == {}
            sock.sendall(everything[:sent])
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        assert pod.held() == []
    with dial(pod.address, "token of 1") as sock:
        wire.send(sock, header)
        assert wire.receive(sock) == {}
        sock.sendall(everything)
        assert wire.receive(sock) == {}
    assert pod.held() == ["(1.9.0)"]


def test_a_copy_that_a_new_round_interrupts_does_not_count(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    with dial(pod.address, "token of 1") as sock:
        header = {"what": "put", "name": name_of(1, 9).fields(), "size": SIZE, "kept": [], "complete": None}
        wire.send(sock, header)
        assert wire.receive(sock) == {}
        begin(2, pod)
        assert sock.recv(1) == b""
    assert pod.held() == []
    with pytest.raises(RefusedError, match="is over"):
        pod.keeper.take_copy("", name_of(1, 9), SIZE, 0, make_buffer(SIZE))


def test_a_worker_that_dies_between_buffer_and_hand_over_leaves_no_memory(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    descriptor = worker.lend(0, SIZE, None, ())
    assert pod.held_bytes() == SIZE

    os.close(descriptor)
    worker.close()

    for _ in range(1000):
        if not pod.held_bytes():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the buffer still counts")


def test_memory_of_the_worker_s_own_making_is_refused(pods: MakePod) -> None:
    """Its pages may not be there: an agent that maps them could be killed."""
    pod = pods()
    begin(1, pod)
    descriptor = make_buffer(SIZE)
    worker = pod.worker()

    assert "has lent" in refusal(lambda: worker.take(name_of(1, 3), SIZE, descriptor))
    os.close(descriptor)


def test_a_piece_is_not_larger_than_its_buffer(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    descriptor = worker.lend(0, SIZE, None, ())

    assert "has lent" in refusal(lambda: worker.take(name_of(1, 3), SIZE + 1, descriptor))
    os.close(descriptor)


# -- 4: an agent that comes back with a step that no other has seen ----------------------------------------


def test_what_a_cut_off_pod_has_saved_alone_is_older_than_what_a_later_round_has(pods: MakePod) -> None:
    cut_off, other, third = pods(), pods(), pods()
    begin(1, cut_off, other)
    first, second = cut_off.worker(), other.worker()
    save(first, name_of(1, 103, 0, 2))
    save(second, name_of(1, 103, 1, 2))
    assert copied(first, name_of(1, 103, 0, 2)) == copied(second, name_of(1, 103, 1, 2)) == ""
    begin(2, other, third)
    later = [pod.worker() for pod in (other, third)]
    for rank, worker in enumerate(later):
        save(worker, name_of(2, 101, rank, 2))
    for rank, worker in enumerate(later):
        assert copied(worker, name_of(2, 101, rank, 2)) == ""
    begin(3, other, cut_off)

    found = decide.candidates([pod.worker().inventory() for pod in (other, cut_off)], "f")

    assert [one.save for one in found] == [Save(1, 2, 1, 101, 2), Save(1, 1, 1, 103, 2)]


# -- 6: a new round writes into no memory of an earlier one ------------------------------------------------


def test_buffers_are_used_again_in_a_round_and_not_in_the_next(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    used = []
    for step in range(1, 7):
        used.append(save(worker, name_of(1, step), complete=name_of(1, step - 1).save if step > 1 else None))
        assert copied(worker, name_of(1, step)) == ""
    assert len(set(used)) == 2
    assert pod.held() == ["1.5.0", "1.6.0"]

    mapped = os.dup(worker.lend(0, SIZE, name_of(1, 6).save, ()))  # a worker that hangs there keeps it
    begin(2, pod)
    new = pod.worker()
    new.resumed("f", name_of(1, 6).save, 1)
    later = {save(new, name_of(2, 7)), save(new, name_of(2, 8), complete=name_of(2, 7).save)}
    assert later.isdisjoint({*used, os.fstat(mapped).st_ino})
    os.close(mapped)


def test_what_a_worker_has_saved_outlives_it(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    save(worker, name_of(1, 3))
    worker.close()
    begin(2, pod)

    found = pod.worker()

    (held,) = found.inventory().held
    assert (held.name, held.size, held.own) == (name_of(1, 3), SIZE, True)
    assert content(found.lease(held.name)) == {3}


def test_the_agent_s_end_is_an_error_of_its_own(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    worker = pod.worker()
    pod.service.close()
    with pytest.raises(AgentError):
        worker.inventory()
