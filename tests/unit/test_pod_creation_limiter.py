"""Pods are made at a rate, one job after the other, and what a running job lacks is not held up."""

from __future__ import annotations

from elasticjob_operator.act.pod_creation_limiter import (
    PODS_PER_SECOND,
    PODS_PER_TURN,
    UNTHROTTLED_PODS,
    PodCreationLimiter,
    Reservation,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.late = False
        self.limiter = PodCreationLimiter(lambda: self.now, lambda: self.late)


class Asking:
    """A job that asks whenever it was told to."""

    def __init__(self, clock: Clock, namespace: str, pods: int) -> None:
        self.clock, self.namespace, self.left = clock, namespace, pods
        self.reserved: Reservation | None = None
        self.next_at = clock.now
        self.made: list[tuple[float, int]] = []

    def ask(self) -> None:
        made, self.reserved, wait = self.clock.limiter.due(self.namespace, self.left, False, self.reserved)
        if made:
            self.made.append((self.clock.now, made))
        self.left -= made
        self.next_at = float("inf") if wait is None else self.clock.now + wait


def run(clock: Clock, jobs: list[Asking], seconds: float) -> None:
    until = clock.now + seconds
    for job in jobs:
        job.ask()
    while (soonest := min(jobs, key=lambda job: job.next_at)).next_at <= until:
        clock.now = max(clock.now, soonest.next_at)
        soonest.ask()
    clock.now = until


def test_one_small_job_is_not_held_up() -> None:
    clock = Clock()
    assert clock.limiter.due("ns", 8, False, None) == (8, None, None)


# shows: hundreds of jobs are applied at once, or the operator or the API server is behind
def test_a_thousand_jobs_get_their_pods_one_after_the_other() -> None:
    clock = Clock()
    jobs = [Asking(clock, "ns", 8) for _ in range(1_000)]
    run(clock, jobs, 100.0)
    whole = [job for job in jobs if not job.left]
    assert len(whole) == len([job for job in jobs if job.made]), "none has a part of its pods"
    assert abs(8 * len(whole) - 100 * PODS_PER_SECOND) <= 8
    run(clock, jobs, 80.0)
    assert not any(job.left for job in jobs)


def test_a_large_job_lets_others_in_between() -> None:
    clock = Clock()
    large, small = Asking(clock, "ns", 5_000), Asking(clock, "ns", 8)
    run(clock, [large, small], 10.0)
    assert small.made == [(100.0 + 2 * PODS_PER_TURN / PODS_PER_SECOND, 8)]
    assert {pods for _, pods in large.made} == {PODS_PER_TURN}


def test_namespaces_do_not_wait_for_each_other() -> None:
    clock = Clock()
    many = [Asking(clock, "busy", 8) for _ in range(1_000)]
    run(clock, many, 1.0)
    other = [Asking(clock, "other", 8) for _ in range(3)]
    run(clock, [*many, *other], 1.0)
    assert not any(job.left for job in other)


def test_a_job_that_has_trained_gets_what_it_lacks_at_once() -> None:
    clock = Clock()
    for _ in range(100):
        clock.limiter.due("ns", 8, False, None)
    clock.late = True
    assert clock.limiter.due("ns", UNTHROTTLED_PODS, True, None) == (UNTHROTTLED_PODS, None, None)
    made, reserved, wait = clock.limiter.due("ns", UNTHROTTLED_PODS + 1, True, None)
    assert (made, wait) == (0, reserved and reserved.at - clock.now)


def test_no_pod_is_made_while_the_last_ones_are_not_even_seen() -> None:
    clock = Clock()
    clock.late = True
    made, reserved, wait = clock.limiter.due("ns", 8, False, None)
    assert made == 0
    assert wait is not None
    assert 1.0 <= wait < 2.0
    clock.now += wait
    clock.late = False
    assert clock.limiter.due("ns", 8, False, reserved) == (8, None, None)
