"""The decisions of leader election: one by one, and of several candidates in a world that loses messages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticjob_operator.leadership.core import Candidate, Record, Step, Timing

TIMING = Timing(lease_duration=15.0, renew_deadline=10.0, retry_period=2.0)


def standby(record: Record | None, now: float = 100.0) -> Candidate:
    return Candidate("me", TIMING).saw(record, 5, now)


def leader(began: float = 100.0) -> Candidate:
    fresh = standby(None, began)
    return fresh.wrote(fresh.proposal("t0"), 7, began)


def test_who_knows_nothing_reads() -> None:
    assert Candidate("me").step(100.0) is Step.READ


def test_a_lease_that_was_never_there_is_made_at_once() -> None:
    assert standby(None).step(100.0) is Step.WRITE
    assert standby(None).proposal("now") == Record("me", 15.0, "now", "now", 0)


def test_a_lease_that_is_held_is_waited_out_from_when_it_was_seen() -> None:
    other = standby(Record("other", 15.0, "long ago", "long ago", 3))
    assert [other.step(t) for t in (100.0, 114.9, 115.0)] == [Step.WAIT, Step.WAIT, Step.WRITE]
    assert other.proposal("now") == Record("me", 15.0, "now", "now", 4)


def test_every_change_starts_the_wait_again_and_the_same_again_does_not() -> None:
    first = Record("other", 15.0, "a", "b", 3)
    other = (
        standby(first).saw(replace(first, renewed="c"), 6, 110.0).saw(replace(first, renewed="c"), 8, 120.0)
    )
    assert other.due() == 125.0
    assert other.version == 8


def test_the_duration_in_the_lease_counts_and_not_our_own() -> None:
    assert standby(Record("other", 40.0)).due() == 140.0
    assert standby(Record("other", 0.0)).due() == 115.0


def test_a_released_lease_is_taken_at_once() -> None:
    assert standby(Record("", 1.0)).step(100.0) is Step.WRITE


def test_what_was_ours_is_taken_again_at_once() -> None:
    assert leader().stepped_down().step(200.0) is Step.WRITE


@pytest.mark.parametrize(("before", "after"), [(7, 8), (2**31 - 1, 2**31 - 1)])
def test_a_lease_is_taken_also_if_it_counts_no_further(before: int, after: int) -> None:
    """The API server refuses leaseTransitions beyond an int32: no operator would ever lead."""
    assert standby(Record("", 1.0, transitions=before)).proposal("t").transitions == after


def test_a_lease_that_vanished_is_waited_out() -> None:
    other = standby(Record("other", 15.0)).saw(None, 6, 110.0)
    assert [other.step(t) for t in (110.0, 124.9, 125.0)] == [Step.WAIT, Step.WAIT, Step.WRITE]


def test_a_leader_renews_and_ends_at_its_deadline() -> None:
    leads = leader()
    assert [leads.step(t) for t in (101.9, 102.0, 109.9, 110.0)] == [
        Step.WAIT,
        Step.WRITE,
        Step.WRITE,
        Step.STEP_DOWN,
    ]
    assert leads.may_act(109.99)
    assert not leads.may_act(110.0)
    assert leads.proposal("t1") == Record("me", 15.0, "t0", "t1", 0)


def test_a_renewal_counts_from_when_it_was_begun() -> None:
    """The answer came after a long freeze: it gives no time."""
    leads = leader()
    assert not leads.wrote(leads.proposal("t1"), 8, 102.0).may_act(112.0)


def test_a_leader_that_sees_another_holder_ends_at_once() -> None:
    deposed = leader().saw(Record("other", 15.0), 9, 103.0)
    assert not deposed.may_act(103.0)
    assert deposed.step(103.0) is Step.STEP_DOWN
    assert deposed.stepped_down().step(103.0) is Step.WAIT


def test_a_leader_makes_a_vanished_lease_again() -> None:
    gone = leader().saw(None, 9, 103.0)
    assert gone.may_act(103.0)
    assert gone.step(103.0) is Step.WRITE


def test_a_view_from_before_our_own_write_is_ignored_unless_it_was_read_since() -> None:
    """After etcd was restored from a backup versions are lower than they were."""
    old = Record("other", 15.0)
    assert leader().saw(old, 6, 103.0) == leader()
    assert leader().saw(old, 6, 103.0, fresh=True).record == old


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_that_make_no_sense(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="lease duration > renew deadline > retry period > 0, found "):
        Timing(*times)


def test_the_lease_of_anybody_is_read() -> None:
    record = Record("me", 15.0, "a", "b", 4)
    assert Record.read({"spec": record.dump()}) == record
    assert Record.read({}) == Record.read({"spec": None}) == Record()


# -- several candidates --------------------------------------------------------------------------------------

STEP = 0.5
FATES = ("slow request", "very slow request", "slow answer", "lost request", "lost answer")
NEVER = 10**9


@dataclass
class Request:
    """A write under way. It arrives however its sender fares meanwhile."""

    record: Record
    version: int
    began: float
    arrives_in: int
    answers_in: int
    made: int | None = None
    """The version that it has made; 0: refused; None: it has not arrived."""


@dataclass
class Host:
    """A process with a clock of its own."""

    candidate: Candidate
    offset: float
    frozen: int = 0
    cut: int = 0
    request: Request | None = None


@dataclass
class World:
    """One Lease, written only with the right version; true time in steps."""

    hosts: list[Host]
    wire: list[Request] = field(default_factory=list)
    record: Record | None = None
    version: int = 0
    now: float = 0.0
    leaders: set[str] = field(default_factory=set)

    def clock(self, host: Host) -> float:
        return self.now + host.offset

    def leading(self) -> list[str]:
        return [h.candidate.me for h in self.hosts if h.candidate.may_act(self.clock(h))]

    def tick(self, fates: dict[int, str]) -> None:
        self.now += STEP
        self._deliver()
        for number, host in enumerate(self.hosts):
            host.cut = max(0, host.cut - 1)
            if host.frozen:
                host.frozen -= 1
            else:
                self._answer(host)
                self._act(host, fates.get(number, ""))
        leading = self.leading()
        assert len(leading) <= 1, f"{leading} may act at {self.now}"
        self.leaders.update(leading)

    def _deliver(self) -> None:
        for request in self.wire:
            request.arrives_in -= 1
            if request.arrives_in <= 0:
                request.made = 0
                if request.version == self.version:
                    self.version += 1
                    self.record, request.made = request.record, self.version
        self.wire = [request for request in self.wire if request.made is None]

    def _answer(self, host: Host) -> None:
        request = host.request
        if request is None:
            return
        request.answers_in -= 1
        if request.made is not None and request.answers_in <= 0:
            host.request = None
            if request.made:
                host.candidate = host.candidate.wrote(request.record, request.made, request.began)
            else:
                self._read(host)
        elif self.clock(host) - request.began > TIMING.renew_deadline / 2:
            host.request = None

    def _read(self, host: Host) -> None:
        host.candidate = host.candidate.saw(self.record, self.version, self.clock(host), fresh=True)

    def _act(self, host: Host, fate: str) -> None:
        if not host.cut and host.request is None:
            self._read(host)
        now = self.clock(host)
        step = host.candidate.step(now)
        if step is Step.STEP_DOWN:
            host.candidate = host.candidate.stepped_down()
        elif step is Step.WRITE and host.request is None and not host.cut:
            host.request = Request(
                record=host.candidate.proposal(f"{host.candidate.me} {self.now}"),
                version=host.candidate.version,
                began=now,
                arrives_in={"slow request": 8, "very slow request": 60, "lost request": NEVER}.get(fate, 1),
                answers_in={"slow answer": 8, "lost answer": NEVER}.get(fate, 1),
            )
            self.wire.append(host.request)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("freeze", "cut", "restart", *FATES)),
        st.integers(0, 2),
        st.integers(1, 60),
        st.integers(0, 60),
    ),
    max_size=12,
)
"""What happens to which host, for how many steps, and how many steps pass before the next."""


@settings(max_examples=400, deadline=None)
@given(offsets=st.tuples(*[st.floats(-1e6, 1e6)] * 3), events=EVENTS)
def test_never_two_and_in_the_end_one(
    offsets: tuple[float, float, float], events: list[tuple[str, int, int, int]]
) -> None:
    """Whatever freezes, is cut off or starts anew, and whatever the clocks show."""
    world = World([Host(Candidate(f"p{n}", TIMING), offset) for n, offset in enumerate(offsets)])
    for _ in range(4):
        world.tick({})
    for count, (kind, number, length, pause) in enumerate(events):
        host = world.hosts[number]
        fates: dict[int, str] = {}
        if kind == "freeze":
            host.frozen = length
        elif kind == "cut":
            host.cut = length
        elif kind == "restart":
            world.hosts[number] = Host(Candidate(f"p{number} {count}", TIMING), host.offset)
        else:
            fates = {number: kind}
        for step in range(pause + 1):
            world.tick(fates if step <= length else {})
    for host in world.hosts:
        host.frozen = host.cut = 0
    world.wire.clear()
    for _ in range(int((TIMING.lease_duration + TIMING.renew_deadline) / STEP) + 4):
        world.tick({})
    assert len(world.leading()) == 1, world
