"""Memory checkpoints with real process groups and real agents' memory: losses, other world sizes, damage.

The agents are in this process, the ranks in processes of their own. The losses tell whether a run that was
resumed is the run that was interrupted.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devcluster.wait import wait_for
from elasticjob.contract.names import PROGRESS_DIR_ENV
from elasticjob.memory.pieces import PieceName
from tests.e2e.checkpoint_moments import MEMORY_MOMENTS
from tests.e2e.checkpoint_rounds import WRAPPER, Run
from tests.unit.memory.agents import Pod, begin
from tests.unit.memory.peers import member

NEVER = 1000
"""``every``: nothing is saved to the folder."""
Outcomes = list[dict[str, Any]]


class Job:
    """A run and its pods."""

    def __init__(self, directory: Path) -> None:
        self.progress = directory / "progress"
        self.progress.mkdir()
        environment = {PROGRESS_DIR_ENV: str(self.progress)}
        self.run = Run(directory, str(directory / "checkpoints"), environment)
        self.pods: list[Pod] = []

    def make(self, count: int = 1, **settings: Any) -> list[Pod]:
        made = [Pod(limit=1 << 30, **settings) for _ in range(count)]
        self.pods += made
        return made

    def train(self, number: int, pods: Sequence[Pod], until: int, **options: Any) -> Outcomes:
        """A round of these pods, each with one rank."""
        begin(number, *pods)
        agents = tuple(pod.where for pod in pods)
        return self.run.train(len(pods), number, until, agents=agents, **{"every": NEVER, **options})

    def resumed(self) -> dict[str, Any]:
        """What rank 0 has said of the last round."""
        said: dict[str, Any] = json.loads((self.progress / "resumed.json").read_text())
        return said


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for pod in made.pods:
        pod.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The losses of nine steps on one rank, undisturbed."""
    directory = tmp_path_factory.mktemp("reference")
    undisturbed = Run(directory, str(directory / "checkpoints"), {}).train(1, 1, 9, every=100, wrapper="ddp")
    losses: dict[str, float] = undisturbed[0]["losses"]
    return losses


def steps(outcomes: Outcomes) -> set[int]:
    return {outcome["resumed"] for outcome in outcomes}


def piece(pod: Pod, step: int, rank: int) -> PieceName:
    (found,) = [name for name in pod.keeper._shelf.names() if (name.save.step, name.rank) == (step, rank)]
    return found


def flip(pod: Pod, name: PieceName, bit: int = 0) -> None:
    """Flip a bit in the middle of a piece."""
    held = pod.keeper._shelf.pieces[name]
    at = held.size // 2
    byte = os.pread(held.descriptor, 1, at)[0]
    os.pwrite(held.descriptor, bytes([byte ^ (1 << bit)]), at)


@pytest.mark.parametrize("wrapper", sorted({"ddp", WRAPPER}))
def test_killed_workers_resume_at_the_step_that_they_saved_last(
    job: Job, reference: dict[str, float], wrapper: str
) -> None:
    pods = job.make(2)
    first = job.train(1, pods, 5, wrapper=wrapper)
    assert [outcome["saved"] for outcome in first] == [5, 5]
    last = job.train(2, pods, 9, wrapper=wrapper)
    assert steps(last) == {5}
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)
    assert any(
        "resumed from memory: step 5, saved by 2 ranks, loaded by 2" in line for line in last[0]["log"]
    )
    assert job.run.names() == []
    said = job.resumed()
    # With DDP each rank needs every other rank's part of the state, which its partner has a copy of.
    assert (said["step"], said["from"], said["pieces_from_peers"]) == (5, "Memory", 0)


@pytest.mark.parametrize("wrapper", sorted({"ddp", WRAPPER}))
def test_killed_workers_resume_though_pods_send_each_other_nothing(
    job: Job, reference: dict[str, float], wrapper: str
) -> None:
    pods = job.make(2, network=False)
    job.train(1, pods, 5, wrapper=wrapper)
    last = job.train(2, pods, 9, wrapper=wrapper)
    assert steps(last) == {5}
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)
    assert (job.resumed()["from"], job.resumed()["pieces_from_peers"]) == ("Memory", 0)


@pytest.mark.parametrize("wrapper", sorted({"ddp", WRAPPER}))
@pytest.mark.parametrize(("before", "kept", "after"), [(3, 2, 3), (3, 2, 2), (2, 2, 3), (2, 1, 1), (3, 2, 4)])
def test_a_lost_pod_costs_no_step_at_any_world_size(
    job: Job, reference: dict[str, float], wrapper: str, before: int, kept: int, after: int
) -> None:
    pods = job.make(before)
    job.train(1, pods, 4, wrapper=wrapper)
    last = job.train(2, [*job.make(after - kept), *pods[:kept]], 7, wrapper=wrapper)
    assert steps(last) == {4}
    assert last[0]["losses"] == pytest.approx({str(n): reference[str(n)] for n in range(1, 8)}, rel=1e-4)
    if after > kept:
        assert job.resumed()["from"] == "Peer"
        assert job.resumed()["pieces_from_peers"] > 0


@pytest.mark.parametrize(
    ("before", "ranks", "after", "then"),
    [("ddp", 3, WRAPPER, 2), (WRAPPER, 2, "none", 3), ("none", 3, "ddp", 2)],
    ids=["ddp to fsdp", "fsdp to none", "none to ddp"],
)
def test_another_wrapper_loads_it_too_at_another_world_size(
    job: Job, reference: dict[str, float], before: str, ranks: int, after: str, then: int
) -> None:
    pods = job.make(ranks)
    job.train(1, pods, 5, wrapper=before)
    last = job.train(2, [*pods, *job.make(1)][:then], 9, wrapper=after)
    assert steps(last) == {5}
    assert job.resumed()["from"] in ("Memory", "Peer")
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)


def test_two_lost_pods_cost_what_the_folder_does_not_have(job: Job, reference: dict[str, float]) -> None:
    pods = job.make(3)
    job.train(1, pods, 5, every=3)
    last = job.train(2, [pods[0], *job.make(2)], 9)
    assert steps(last) == {3}
    assert job.resumed()["from"] == "Storage"
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)
    assert all(name.save.round == 2 for name in pods[0].keeper._shelf.names()), "its old piece is of no use"


def test_memory_is_used_where_the_folder_cannot_be_read(job: Job) -> None:
    pods = job.make(2)
    job.train(1, pods, 4, every=4)
    shard = job.run.shard("s00000004")
    shard.write_bytes(bytes(shard.stat().st_size))
    outcomes = job.train(2, pods, 5)
    assert steps(outcomes) == {4}
    assert job.resumed()["from"] == "Memory"
    assert not [line for line in outcomes[0]["log"] if "passed over" in line]


def test_the_folder_is_used_where_it_has_something_newer(job: Job, reference: dict[str, float]) -> None:
    pods = job.make(2)
    job.train(1, pods, 5)
    job.run.train(2, 2, 4, every=2)  # a round without memory, which does not know of step 5
    last = job.train(3, pods, 9)
    assert steps(last) == {4}
    assert job.resumed()["from"] == "Storage"
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)


def test_a_damaged_piece_is_passed_over_and_its_copy_is_loaded(job: Job, reference: dict[str, float]) -> None:
    pods = job.make(2)
    job.train(1, pods, 5)
    flip(pods[0], piece(pods[0], 5, 0))
    last = job.train(2, pods, 9)
    assert steps(last) == {5}
    (line,) = [line for outcome in last for line in outcome["log"] if line.startswith("passed over")]
    assert "rank 0's piece of step 5 of round 1" in line
    assert "has the checksum" in line
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)


def test_where_a_piece_and_its_copy_are_damaged_the_save_before_is_loaded(
    job: Job, reference: dict[str, float]
) -> None:
    pods = job.make(2)
    job.train(1, pods, 5)
    for pod in pods:
        flip(pod, piece(pod, 5, 1))
    last = job.train(2, pods, 9)
    assert steps(last) == {4}
    (line,) = [line for line in last[0]["log"] if line.startswith("passed over")]
    assert "step 5 of round 1" in line
    assert line.count("has the checksum") == 2
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)


def test_where_everything_in_memory_is_damaged_the_folder_is_used(job: Job) -> None:
    pods = job.make(2)
    job.train(1, pods, 5, every=2)
    for pod in pods:
        for name in pod.keeper._shelf.names():
            flip(pod, name)
    outcomes = job.train(2, pods, 6)
    assert steps(outcomes) == {4}
    assert job.resumed()["from"] == "Storage"
    assert len([line for line in outcomes[0]["log"] if line.startswith("passed over what is in memory")]) == 2


def test_a_save_to_the_folder_that_takes_long_holds_up_no_save_to_memory(job: Job, tmp_path: Path) -> None:
    """Both use collectives: on one process group those of the two threads would meet each other's."""
    pods = job.make(2)
    begin(1, *pods)
    agents, held = tuple(pod.where for pod in pods), tmp_path / "held"
    with job.run.round(2, 1, 7, every=4, agents=agents, hold=("check", 4, str(held))) as going:
        wait_for(held.exists, 60, "the save to the folder is not held")
        wait_for(
            lambda: all(any(name.save.step == 7 for name in pod.keeper._shelf.names()) for pod in pods),
            60,
            "step 7 is not in memory",
        )
        held.unlink()
        outcomes = going.outcomes()
    assert [outcome["saved"] for outcome in outcomes] == [7, 7]
    assert job.run.names() == ["r000001-s00000004"]


def test_a_round_that_has_resumed_from_memory_keeps_no_more_in_the_folder_than_others(job: Job) -> None:
    """Each of these rounds saves to the folder once."""
    pods = job.make(2)
    for number in range(1, 5):
        outcomes = job.train(number, pods, 2 * number + 1, every=2)
        assert steps(outcomes) == {0 if number == 1 else 2 * number - 1}
    assert job.run.names() == ["r000003-s00000006", "r000004-s00000008"]


@pytest.mark.parametrize("moment", MEMORY_MOMENTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_save_costs_one_step_at_most(
    job: Job, reference: dict[str, float], moment: str, rank: int
) -> None:
    pods = job.make(2)
    begin(1, *pods)
    agents = tuple(pod.where for pod in pods)
    with job.run.round(2, 1, 9, every=NEVER, agents=agents, kill=(moment, rank, 4)) as going:
        going.outcomes(killed=rank)
    last = job.train(2, pods, 9)
    assert steps(last) <= {3, 4}
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)


def test_saves_are_skipped_by_all_ranks_together_while_copies_are_under_way(
    job: Job,
) -> None:
    """A partner that takes no byte, so that no copy ends there; a rank that waited would wait for it."""
    over = threading.Event()
    pods = job.make(2)
    begin(1, *pods)
    with member(lambda _: over.wait(600)) as address:
        pods[0].meet("token of 1", address)
        agents = tuple(pod.where for pod in pods)
        outcomes = job.run.train(2, 1, 6, every=NEVER, agents=agents, patient=False)
        over.set()
    assert [(outcome["saved"], outcome["skipped"]) for outcome in outcomes] == [(1, 5), (1, 5)]


def test_a_copy_that_fails_keeps_the_save_before_and_the_next_is_tried(job: Job) -> None:
    """The partner takes no copies any more: the last complete save stays, the newest one is there as well."""
    pods = job.make(2)
    begin(1, *pods)
    pods[0].meet("token of 1", "127.0.0.1:9")
    outcomes = job.run.train(2, 1, 2, every=NEVER, agents=tuple(pod.where for pod in pods))
    assert [(outcome["saved"], outcome["skipped"]) for outcome in outcomes] == [(2, 0), (2, 0)]
    assert pods[0].held() == ["(1.2.1)", "1.2.0"]
    last = job.train(2, pods, 6)
    assert steps(last) == {2}


def test_a_member_that_cannot_be_reached_has_no_copies_and_the_others_have(job: Job) -> None:
    """Its neighbour's saves count all the same, or no save of any rank would: rank 0 says what is missing."""
    pods = job.make(3)
    begin(1, *pods)
    pods[0].meet("token of 1", "127.0.0.1:9")
    outcomes = job.run.train(3, 1, 6, every=NEVER, agents=tuple(pod.where for pod in pods))
    assert [(outcome["saved"], outcome["skipped"]) for outcome in outcomes] == [(6, 0)] * 3
    (said,) = [line for outcome in outcomes for line in outcome["log"] if "no copy in memory" in line]
    assert "the parts of 1 of 3 ranks have no copy in memory: rank 0: 3 copies in turn" in said
    assert pods[2].held() == ["(1.5.1)", "(1.6.1)", "1.5.2", "1.6.2"]
    last = job.train(2, pods, 7)
    assert steps(last) == {6}


def test_one_agent_that_is_switched_off_switches_all_ranks_off_with_a_sentence(job: Job) -> None:
    pods = job.make(2)
    pods[1].keeper.switch_off("a container of this job was out of memory")
    outcomes = job.train(1, pods, 6, every=3)
    assert [outcome["saved"] for outcome in outcomes] == [0, 0]
    said = [line for outcome in outcomes for line in outcome["log"] if "no more memory checkpoints" in line]
    assert len(said) == 1
    assert "rank 1: a container of this job was out of memory" in said[0]
    assert steps(job.train(2, pods, 7)) == {6}


def test_a_pod_without_room_switches_all_ranks_off_with_what_to_do(job: Job) -> None:
    pods = job.make(1)
    small = Pod(limit=1)
    job.pods.append(small)
    outcomes = job.train(1, [*pods, small], 4, every=2)
    (said,) = [
        line for outcome in outcomes for line in outcome["log"] if "no more memory checkpoints" in line
    ]
    assert "rank 1: a piece of" in said
    assert "a pod may hold 0 MiB, and needs 2 times the pieces of its workers" in said


def test_without_memory_on_one_rank_all_save_to_the_folder_as_without_any(job: Job) -> None:
    (pod,) = job.make(1)
    begin(1, pod)
    outcomes = job.run.train(2, 1, 4, every=2, agents=(pod.where, ""))
    (line,) = [line for line in outcomes[0]["log"] if line.startswith("no memory checkpoints")]
    assert "rank 1: the job has no memory for checkpoints" in line
    assert job.run.names() == ["r000001-s00000002", "r000001-s00000004"]
    assert pod.held() == []


def test_in_the_wrong_round_nothing_is_saved_to_memory(job: Job) -> None:
    (pod,) = job.make(1)
    begin(1, pod)
    begin(2, pod)
    outcomes = job.run.train(1, 3, 4, every=2, agents=(pod.where,))
    assert any("torchrun is in round 2" in line for line in outcomes[0]["log"])
    assert pod.held() == []


def test_one_pod_after_the_other_is_lost_and_replaced(job: Job, reference: dict[str, float]) -> None:
    pods = job.make(3)
    done = 0
    for number in range(1, 5):
        outcomes = job.train(number, pods, done + 2)
        assert steps(outcomes) == {done}
        done += 2
        pods[number % 3] = job.make(1)[0]
    last = job.train(5, pods, 9)
    assert steps(last) == {8}
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)
