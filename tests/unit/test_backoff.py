"""What gets nowhere is tried again later and later, and does not keep others from training."""

from __future__ import annotations

import pytest

from elasticjob_operator.plan.charges.backoff import MAX_SLOT_BACKOFFS
from tests.scenarios.world import World


class Job:
    """A job whose pods are made, and join, three seconds after they were asked for."""

    def __init__(self, options: str) -> None:
        self.world = World()
        self.asked: dict[str, float] = {}
        self.do(f"job {options}")

    def do(self, line: str) -> None:
        self.world.play(line)

    def second(self) -> None:
        """A second passes: pods start, members that live come back at once, and the round is established."""
        world = self.world
        self.do("wait 1")
        for name, pod in list(world.pods.items()):
            if (
                not pod.running
                and not pod.ended
                and world.mono - self.asked.setdefault(name, world.mono) >= 3
            ):
                self.do(f"start {name}")
        if world.status.current_round.phase == "Broken" and world.status.current_round.number:
            ids = {m.pod_uid: m.id for m in world.status.members()}
            for name, pod in list(world.pods.items()):
                lease = world.leases.get(name)
                back = lease is not None and lease.record is not None and lease.record.id != ids.get(pod.uid)
                if pod.uid in ids and pod.running and not back:
                    self.do(f"join {name}")
        if (
            world.status.current_round.phase == "Active"
            and world.status.current_round.established_time is None
        ):
            self.do("establish")


# shows: the pods of one slot die soon after each round is established
def test_a_slot_whose_pod_dies_after_each_round_does_not_keep_the_others_from_training() -> None:
    job = Job("replicas=3 min=2")
    trained = 0
    for _ in range(28 * 60):
        job.second()
        round_ = job.world.status.current_round
        if round_.phase == "Active":
            for member in job.world.status.members():
                if member.slot == 2:
                    job.do(f"exit {member.pod_name} 137")
        trained += job.world.status.current_round.phase == "Active"
    assert job.world.status.current_round.number <= 20
    assert trained >= 28 * 60 - 60


@pytest.mark.parametrize("saved", [0, 1], ids=["each_round_from_the_same_step", "each_round_a_step_further"])
@pytest.mark.parametrize("least", [2, 3])
def test_a_slot_whose_pod_dies_after_its_first_steps_is_paced_whatever_the_others_report(
    least: int, saved: int
) -> None:
    job = Job(f"replicas=3 min={least}")
    since, numbers = 0.0, []
    for _ in range(28 * 60):
        job.second()
        round_, mono = job.world.status.current_round, job.world.mono
        numbers.append(round_.number)
        if round_.phase != "Active":
            continue
        if numbers[-2:-1] != [round_.number]:
            since = mono
        if mono - since == 5:
            job.do(f"progress {saved * round_.number + 1}")
        for member in job.world.status.members():
            if member.slot == 2 and mono - since >= 10:
                job.do(f"exit {member.pod_name} 137")
    assert numbers[-1] <= 45
    assert numbers[-1] - numbers[-600] <= (4 if least == 2 else 10)


DISRUPTED = {
    "preempted": "disrupt {} PreemptionByScheduler",
    "evicted": "disrupt {} EvictionByEvictionAPI",
    "deleted": "delete {}",
    "node_pressure": "kubelet {} Evicted 'The node was low on resource: memory.'",
}


@pytest.mark.parametrize(
    ("how", "saved"), [("preempted", 0), ("evicted", 1), ("deleted", 0), ("node_pressure", 1)]
)
# shows: the pods of one slot are preempted, evicted or deleted soon after each round is ...
def test_a_slot_whose_pod_is_taken_away_after_each_round_does_not_keep_the_others_from_training(
    how: str, saved: int
) -> None:
    """At first the next pod was let in each time: the others trained 105 of 1,800 s."""
    job = Job("replicas=3 min=2")
    since, trained, known = 0.0, 0, 0
    for _ in range(1_800):
        job.second()
        world = job.world
        round_ = world.status.current_round
        trained += round_.phase == "Active"
        if round_.number != known:
            since, known = world.mono, round_.number
        if round_.phase != "Active" or world.mono - since < 3:
            continue
        if world.mono - since == 3 and saved:
            job.do(f"progress {round_.number}")
        for member in world.status.members():
            if member.slot == 2:
                job.do(DISRUPTED[how].format(member.pod_name))
                if not world.pods[member.pod_name].ended:
                    job.do(f"gone {member.pod_name}")
    assert trained >= 1_800 - 90
    assert job.world.status.current_round.number <= 24


def test_pods_of_others_that_are_taken_away_after_each_round_do_not_keep_the_rest_from_training() -> None:
    """The same where others create the next pod, which has no slot."""
    job = Job("replicas=3 min=2 template=none")
    world = job.world
    job.do("pod w-a w-b w-c")
    job.do("join w-a w-b w-c last=0")
    since, trained, known, evicted = 0.0, 0, 0, [0.0]
    for number in range(1_800):
        job.second()
        round_ = world.status.current_round
        trained += round_.phase == "Active"
        if round_.number != known:
            since, known = world.mono, round_.number
        newest = max(world.pods)
        if evicted[-1] and world.mono - evicted[-1] == 3:
            job.do(f"pod w-x{number:04}")
            job.do(f"join w-x{number:04} last={round_.number}")
        elif round_.phase == "Active" and world.mono - since >= 3 and round_.members == 3:
            job.do(f"disrupt {newest} EvictionByEvictionAPI")
            job.do(f"gone {newest}")
            evicted.append(world.mono)
    assert trained >= 1_800 - 90
    assert round_.number <= 24


@pytest.mark.parametrize("template", ["", " template=none"], ids=["own_pods", "pods_of_others"])
# shows: the pods of one slot are preempted, evicted or deleted soon after each round is ...
def test_a_drain_that_takes_each_pod_once_lets_every_replacement_in(template: str) -> None:
    job = Job(f"replicas=4 min=2{template}")
    world = job.world
    first = [f"mnist-{slot}-0" for slot in range(4)]
    if template:
        job.do(f"pod {' '.join(first)}")
        job.do(f"join {' '.join(first)} last=0")
    due, since, known, sizes = list(first), 0.0, 0, []
    for _ in range(60):
        job.second()
        round_ = world.status.current_round
        if round_.number != known:
            since, known = world.mono, round_.number
            sizes.append(round_.members)
        if round_.phase == "Active" and world.mono - since >= 3 and due:
            old = due.pop(0)
            job.do(f"disrupt {old} EvictionByEvictionAPI")
            job.do(f"gone {old}")
            if template:
                job.do(f"pod {old[:-1]}1")
                job.do(f"join {old[:-1]}1 last={round_.number}")
    assert not due
    assert sizes == [4, 4, 4, 4, 4]
    assert {m.pod_name for m in world.status.members()} == {f"mnist-{slot}-1" for slot in range(4)}


# shows: the script fails again and again, and `failurePolicy.application` is not set
def test_a_broken_script_fails_the_job_after_six_attempts() -> None:
    job = Job("replicas=2")
    for _ in range(120):
        job.second()
        if job.world.status.current_round.phase == "Active":
            job.do("fail mnist-0-0 mnist-1-0 exit=1")
        if job.world.status.finished:
            break
    failed = job.world.status.condition("Failed")
    assert failed is not None
    assert failed.reason == "ApplicationRestartsExhausted"
    assert job.world.status.current_round.number == 6
    assert job.world.mono <= 60


# shows: the script fails again and again, with `application: {}`
def test_without_a_limit_a_broken_script_is_tried_once_a_minute() -> None:
    job = Job("replicas=2")
    job.do("limit application none")
    numbers = []
    for _ in range(1_000):
        job.second()
        if job.world.status.current_round.phase == "Active":
            job.do("fail mnist-0-0 mnist-1-0 exit=1")
        numbers.append(job.world.status.current_round.number)
    assert numbers[-1] <= 7 + 1_000 / 60
    assert numbers[-1] > numbers[-70]


def test_more_slots_than_are_listed_are_paced() -> None:
    """Pods that end four seconds after they were made; at first those beyond the list were made at once."""
    slots = MAX_SLOT_BACKOFFS + 50
    job = Job(f"replicas={slots} min=1 initial_last_call_timeout=1000")
    job.do("limit application none")
    made: set[str] = set()
    for _ in range(60):
        job.world.do("wait 1")
        for name, pod in list(job.world.pods.items()):
            made.add(name)
            asked = job.asked.setdefault(name, job.world.mono)
            if not pod.running and not pod.ended and job.world.mono - asked >= 3:
                job.world.do(f"run {name}")
                job.world.do(f"exit {name} 1")
        job.world.make_passes()
    assert len(made) <= 6 * slots
    assert len(job.world.status.slot_backoffs) == MAX_SLOT_BACKOFFS
    assert min(backoff.count for backoff in job.world.status.slot_backoffs) >= 4
