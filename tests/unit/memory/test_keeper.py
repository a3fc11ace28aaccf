"""Copies, room, loading and switching off: an agent's memory while training goes on and after crashes."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticjob.memory import copies, fetching, keeper
from elasticjob.memory.client import Agent, State
from elasticjob.memory.pieces import PieceName, Save, parse
from tests.unit.memory.agents import SIZE, Pod, begin, content, copied, held_of, name_of, refusal, save

MakePod = Callable[..., Pod]


def step(workers: list[Agent], number: int, at: int, complete: int = 0) -> list[str]:
    """All save a step; why the copies failed."""
    names = [name_of(number, at, rank, len(workers)) for rank in range(len(workers))]
    before = names[0].save._replace(step=complete) if complete else None
    for worker, name in zip(workers, names, strict=True):
        save(worker, name, complete=before)
    return [copied(worker, name) for worker, name in zip(workers, names, strict=True)]


def test_copies_are_equal_and_have_checksums(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a, b)
    assert step([a.worker(), b.worker()], 1, 7) == ["", ""]

    for pod, own in ((a, 0), (b, 1)):
        worker = pod.worker()
        found = {held.name.rank: held for held in worker.inventory().held}
        assert {rank: held.own for rank, held in found.items()} == {own: True, 1 - own: False}
        assert {held.crc32 for held in found.values()} == {zlib.crc32(bytes([7]) * SIZE)}
        assert all(content(worker.lease(held.name)) == {7} for held in found.values())


def test_two_saves_are_held_and_the_room_of_four_pieces_is_enough_for_ever(pods: MakePod) -> None:
    a, b = pods(limit=4 * SIZE), pods(limit=4 * SIZE)
    begin(1, a, b)
    workers = [a.worker(), b.worker()]
    for at in range(1, 8):
        assert step(workers, 1, at, complete=at - 1) == ["", ""]
    assert a.held() == ["(1.6.1)", "(1.7.1)", "1.6.0", "1.7.0"]
    assert a.held_bytes() == b.held_bytes() == 4 * SIZE


@pytest.mark.parametrize("incomplete", [True, False])
def test_crash_after_crash_the_room_of_four_pieces_is_enough(pods: MakePod, incomplete: bool) -> None:
    """Each round ends in the middle of a save, once before any save of its own is complete."""
    a, b = pods(limit=4 * SIZE), pods(limit=4 * SIZE)
    newest = None
    for number in range(1, 10):
        begin(number, a, b)
        workers = [a.worker(), b.worker()]
        for worker in workers:
            worker.inventory()
            worker.resumed("f", newest, 1)
        last = 1 if number % 3 == 0 else 4
        for at in range(1, last + 1):
            assert step(workers, number, at, complete=at - 1) == ["", ""]
        newest = name_of(number, last, 0, 2).save
        if incomplete:
            save(workers[0], name_of(number, last + 1, 0, 2), complete=newest)
    assert a.held_bytes() <= 4 * SIZE


def test_without_a_partner_a_piece_needs_no_copy(pods: MakePod) -> None:
    pod = pods(network=False)
    begin(1, pod)
    assert pod.service.port == 0
    assert step([pod.worker()], 1, 3) == [""]
    assert pod.worker().inventory().address == ""


def test_without_a_network_nothing_is_taken_from_other_pods(pods: MakePod) -> None:
    lonely, other = pods(network=False), pods()
    begin(1, lonely)
    begin(1, other)
    save(other.worker(), name_of(1, 3))
    worker = lonely.worker()
    assert "takes nothing from others" in refusal(
        lambda: worker.fetch(held_of(name_of(1, 3)), other.address, 60)
    )


def test_a_copy_that_fails_has_ended_badly_and_the_next_one_is_tried_again(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a)
    begin(1, b)
    b.enter(1)
    a.meet("token", b.address)
    b.meet("another token", a.address)
    worker = a.worker()
    save(worker, name_of(1, 3))
    assert "was not copied" in copied(worker, name_of(1, 3))

    b.meet("token", a.address)
    save(worker, name_of(1, 4), stale=(name_of(1, 3),))

    assert copied(worker, name_of(1, 4)) == ""
    assert (a.held(), b.held()) == (["1.4.0"], ["(1.4.0)"])


def test_a_piece_with_a_copy_says_so_and_one_that_needs_none_does_too(pods: MakePod) -> None:
    a, b, alone = pods(), pods(), pods()
    begin(1, a, b)
    begin(1, alone)
    for pod, has_one in ((a, True), (alone, False)):
        worker = pod.worker()
        save(worker, name_of(1, 3))
        assert copied(worker, name_of(1, 3)) == ""
        assert worker.state_of(name_of(1, 3)) == State(copied=has_one)


def test_saves_go_on_without_copies_if_the_members_do_not_meet(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end, so that the ranks of other members do not skip all saves."""
    monkeypatch.setattr(keeper, "MEET_SECONDS", 0.1)
    pod = pods()
    pod.enter(1)
    worker = pod.worker()
    save(worker, name_of(1, 3))
    assert copied(worker, name_of(1, 3)) == ""
    assert worker.state_of(name_of(1, 3)) == State(alone="the members of the round have not met")
    pod.meet("token", "")
    save(worker, name_of(1, 4))
    assert copied(worker, name_of(1, 4)) == ""
    assert worker.state_of(name_of(1, 4)) == State(), "they have met late"


def test_a_partner_that_fails_again_and_again_is_left_alone_for_a_while(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = pods(), pods()
    begin(1, a)
    begin(1, b)
    a.meet("another token", b.address)
    worker, found = a.worker(), []
    for at in range(1, 6):
        save(worker, name_of(1, at))
        found.append((copied(worker, name_of(1, at)) == "", worker.state_of(name_of(1, at)).alone))
    assert [well for well, _ in found] == [False, False, True, True, True]
    assert found[-1][1].startswith(f"3 copies in turn could not be sent to {b.address}: ")
    assert len([one for one in caplog.records if "was not copied" in one.getMessage()]) == 2

    monkeypatch.setattr(copies, "REST_SECONDS", 0)
    b.enter(1)
    b.meet("another token", a.address)
    a.service._copies._resting = 0
    save(worker, name_of(1, 6))
    assert copied(worker, name_of(1, 6)) == ""
    assert worker.state_of(name_of(1, 6)).copied


def test_each_opening_of_a_round_has_a_greater_number(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    first, second = pod.worker(), pod.worker()
    assert first.opening < second.opening


def test_the_buffer_of_a_piece_that_is_being_copied_is_not_used_again(pods: MakePod) -> None:
    """It was let go of meanwhile: what is written there next would be sent under its name."""
    pod, other = pods(), pods()
    pod.enter(1)
    worker = pod.worker()
    early = save(worker, name_of(1, 3))
    worker.resumed("f", None, 2)
    later = name_of(1, 4)._replace(save=name_of(1, 4).save._replace(opening=2))
    assert save(worker, later) != early
    other.enter(1)
    other.meet("token")
    pod.meet("token", other.address)
    assert copied(worker, later) == ""
    assert other.held() == ["(1.4.0)"]


def test_what_was_written_over_is_let_go_of_by_the_partner_too(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a, b)
    worker = a.worker()
    for at, complete, stale in ((6, 0, ()), (7, 6, ()), (8, 6, (name_of(1, 7),))):
        name: PieceName = name_of(1, at)
        save(worker, name, complete=name_of(1, complete).save if complete else None, stale=stale)
        assert copied(worker, name) == ""
    assert (a.held(), b.held()) == (["1.6.0", "1.8.0"], ["(1.6.0)", "(1.8.0)"])


def test_a_partner_without_room_refuses_and_says_why(pods: MakePod) -> None:
    a, b = pods(), pods(limit=SIZE - 1)
    begin(1, a, b)
    (why,) = step([a.worker()], 1, 3)
    assert "a pod may hold" in why
    assert b.held() == []


def test_a_partner_without_room_for_copies_is_no_fault_of_the_network(pods: MakePod) -> None:
    """Saves go on without copies then, and what rank 0 says names the size that is missing."""
    a, b = pods(), pods(limit=2 * SIZE)
    begin(1, a, b)
    worker, partner = a.worker(), b.worker()
    for at in (1, 2):
        save(partner, name_of(1, at, 1, 2))
    for at in (1, 2, 3):
        save(worker, name_of(1, at, 0, 2))
        why = copied(worker, name_of(1, at, 0, 2))
    assert why == ""
    said = worker.state_of(name_of(1, 3, 0, 2)).alone
    assert said.startswith("3 copies in turn could not be sent to ")
    assert "a piece of 0 MiB has no room beside 0 MiB own pieces: a pod may hold 0 MiB" in said


def test_a_piece_of_another_pod_is_got_once_for_all_workers_of_the_agent(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a, b)
    save(a.worker(), name_of(1, 3))
    first, second = b.worker(), b.worker()

    descriptors = [worker.fetch(held_of(name_of(1, 3)), a.address, 60) for worker in (first, second)]

    assert len({os.fstat(one).st_ino for one in descriptors}) == 1
    assert [content(one) for one in descriptors] == [{3}, {3}]
    first.resumed("f", None, 1)
    assert b.keeper._fetched._pieces == {}


def test_a_piece_that_has_gone_is_named(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a, b)
    worker = b.worker()
    assert "rank 0's piece of step 3 of round 1" in refusal(lambda: worker.lease(name_of(1, 3)))
    assert "not held here" in refusal(lambda: worker.fetch(held_of(name_of(1, 3)), a.address, 60))


def test_without_room_a_save_is_refused_with_what_to_do(pods: MakePod) -> None:
    pod = pods(limit=SIZE)
    begin(1, pod)
    worker = pod.worker()
    save(worker, name_of(1, 3))
    assert "needs 2 times the pieces of its workers" in refusal(lambda: worker.lend(0, SIZE, None, ()))


def test_what_is_being_made_does_not_count_twice(pods: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers ask at once, and there is memory for both."""
    used = [0]
    making, may_end = threading.Event(), threading.Event()

    def slowly(size: int) -> int:
        used[0] += size
        making.set()
        assert may_end.wait(60)
        return fetching.made(size)

    monkeypatch.setattr(keeper, "made", slowly)
    pod = pods(gate=lambda size: "" if used[0] + size <= 4 * SIZE else f"{2 * SIZE - used[0]} are free")
    begin(1, pod)
    first, second = pod.worker(), pod.worker()
    with ThreadPoolExecutor(2) as pool:
        lent = [pool.submit(first.lend, 0, SIZE, None, ())]
        assert making.wait(60)
        lent.append(pool.submit(second.lend, 1, SIZE, None, ()))
        time.sleep(0.2)  # it is asked meanwhile, or it waits for no memory either
        may_end.set()
        for one in lent:
            os.close(one.result(60))
    assert "0 are free" in refusal(lambda: second.lend(1, SIZE, None, ()))


def test_the_gate_is_asked_before_memory_is_used(pods: MakePod) -> None:
    asked: list[int] = []

    def gate(size: int) -> str:
        asked.append(size)
        return "training needs the memory" if len(asked) > 1 else ""

    pod = pods(gate=gate)
    begin(1, pod)
    worker = pod.worker()
    save(worker, name_of(1, 3))
    assert refusal(lambda: worker.lend(0, SIZE, None, ())).startswith("training needs the memory")
    assert asked == [2 * SIZE, 2 * SIZE]


def limited(pods: MakePod, most: int) -> Pod:
    """A pod whose container has this much memory for pieces and saves to the directory."""

    def gate(size: int) -> str:
        free = most - pod.held_bytes()
        return "" if size <= free else f"{free // SIZE} are free"

    pod = pods(gate=gate)
    return pod


@pytest.mark.parametrize("most", [9, 8])
def test_room_is_left_for_a_save_to_the_directory(pods: MakePod, most: int) -> None:
    """It copies each worker's part once more: with room for the buffers alone, the first one was too much."""
    pod = limited(pods, most * SIZE)
    begin(1, pod)
    workers = [pod.worker(), pod.worker()]
    for at in (1, 2):
        for rank, worker in enumerate(workers):
            if (most, at, rank) == (8, 2, 1):
                why = refusal(lambda: workers[1].lend(1, 2 * SIZE, None, ()))
                assert why == "4 are free; 1 MiB of what it needs are for a save to the directory"
            else:
                save(worker, name_of(1, at, rank, 2), size=(1 + rank) * SIZE)
                assert copied(worker, name_of(1, at, rank, 2)) == ""
    assert pod.held_bytes() + 3 * SIZE <= most * SIZE


def test_copies_of_others_leave_that_room_too(pods: MakePod) -> None:
    a, b = pods(), limited(pods, 3 * SIZE)
    begin(1, a, b)
    workers = [a.worker(), b.worker()]
    for rank in (1, 0):
        save(workers[rank], name_of(1, 1, rank, 2))
        assert copied(workers[rank], name_of(1, 1, rank, 2)) == ""
    save(workers[0], name_of(1, 2, 0, 2))
    assert "1 are free" in copied(workers[0], name_of(1, 2, 0, 2))


def test_warm_interpreters_make_way_for_a_save_to_the_directory_too() -> None:
    """The gate has counted what they use as free."""
    freed: list[int] = []
    held = keeper.Keeper(100 * SIZE, lambda _: "", freed.append)
    descriptor = held.lend(held.begin("job", 1), 0, SIZE, None, ())
    assert freed == [2 * SIZE]
    os.close(descriptor)
    held.close()


def test_a_state_that_has_grown_gets_new_buffers(pods: MakePod) -> None:
    pod = pods(limit=5 * SIZE)
    begin(1, pod)
    worker = pod.worker()
    for at in (1, 2, 3):
        save(worker, name_of(1, at), complete=name_of(1, at - 1).save if at > 1 else None)
        assert copied(worker, name_of(1, at)) == ""
    save(worker, name_of(1, 4), complete=name_of(1, 3).save, size=3 * SIZE)
    assert pod.held() == ["1.3.0", "1.4.0"]
    assert pod.held_bytes() == 4 * SIZE


@pytest.mark.parametrize("sizes", [(3, 1, 2), (1, 2, 3), (2, 2, 2)])
def test_each_worker_of_a_pod_uses_its_own_two_buffers_again(pods: MakePod, sizes: tuple[int, ...]) -> None:
    """Other ones would be new memory, or that of another worker, and have to be mapped at each save."""
    a, b = pods(limit=24 * SIZE), pods(limit=24 * SIZE)
    begin(1, a, b)
    workers = [a.worker() for _ in sizes]
    used: list[set[int]] = [set() for _ in sizes]
    copies: list[set[int]] = [set() for _ in sizes]
    for at in range(1, 8):
        complete = name_of(1, at - 1, 0, 3).save if at > 1 else None
        for rank, (worker, size) in enumerate(zip(workers, sizes, strict=True)):
            name = name_of(1, at, rank, 3)
            used[rank].add(save(worker, name, complete=complete, size=size * SIZE))
            assert copied(worker, name) == ""
            copies[rank].add(os.fstat(b.keeper._shelf.pieces[name].descriptor).st_ino)
    assert [len(one) for one in used] == [len(one) for one in copies] == [2, 2, 2]


def test_switched_off_it_takes_nothing_more_and_what_is_there_can_be_resumed_from(pods: MakePod) -> None:
    a, b = pods(), pods()
    begin(1, a, b)
    workers = [a.worker(), b.worker()]
    assert step(workers, 1, 3) == ["", ""]

    b.keeper.switch_off("a container of this job was out of memory")
    b.keeper.switch_off("another reason")

    assert not b.keeper.keeps
    assert a.keeper.keeps
    assert workers[1].state_of(None).off == "a container of this job was out of memory"
    assert "out of memory" in refusal(lambda: workers[1].lend(0, SIZE, None, ()))
    save(workers[0], name_of(1, 4, 0, 2))
    assert "out of memory" in copied(workers[0], name_of(1, 4, 0, 2))
    begin(2, a, b)
    worker = b.worker()
    assert {held.name for held in worker.inventory().held} == {name_of(1, 3, rank, 2) for rank in (0, 1)}
    worker.resumed("f", None, 1)
    assert b.held() == []


def test_after_an_oom_kill_everything_is_let_go_of_at_once(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    save(pod.worker(), name_of(1, 3))
    pod.keeper.let_go()
    assert pod.held_bytes() == 0
    assert pod.worker().inventory().held == ()


def test_what_is_asked_for_wrongly_ends_the_connection_and_nothing_else(pods: MakePod) -> None:
    pod = pods()
    begin(1, pod)
    for size in (0, -1, True, "1", 1.5):
        worker = pod.worker()
        assert "does not answer" in refusal(lambda size=size, w=worker: w.lend(0, size, None, ()))  # type: ignore[misc]
    worker = pod.worker()
    assert "does not answer" in refusal(lambda: worker._ask("sing"))
    save(pod.worker(), name_of(1, 3))
    assert pod.held() == ["1.3.0"]


def test_of_two_rounds_of_one_number_the_later_one_has_the_greater_openings(
    pods: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user had deleted what showed the first one, whose state was taken for the newer half of the time."""
    clock, found = time.time_ns(), []
    for later in range(20):
        monkeypatch.setattr(time, "time_ns", lambda later=later: clock + later * 1_000_000)
        pod = pods()
        pod.enter(7)
        found += [pod.worker().opening for _ in range(8)]
    assert found == sorted(set(found))
    saves = [Save(1, 7, opening, 1000 - at, 1) for at, opening in enumerate(found)]
    read = [parse(name_of(7, 1)._replace(save=one).fields()).save for one in saves]
    assert read == sorted(saves)
