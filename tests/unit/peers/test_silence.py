"""Nothing is heard of members: what is tried, what is said, and when they are judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from elasticjob.contract.fields import MAX_NUMBER
from elasticjob.contract.reports import RoundReport
from elasticjob.coordination.directory import NEVER, RENEWS_SECONDS, changed_at
from elasticjob.peers.round_lease import Identity, ListAgain, RoundLease, Write
from elasticjob.peers.run import Run
from elasticjob.peers.seat import Seat
from elasticjob.peers.settled import FORMING_RENEW, Settled
from elasticjob.peers.sight import Peer, Sight
from elasticjob.peers.silence import STANDSTILL_SECONDS
from tests.unit.peers.table import BEGAN, Table


def all_silent(seconds: float) -> Table:
    """A round of two at its maximum, of which nothing was heard for so long; a third stands by."""
    table = Table(minimum=2, maximum=2, last_call=0)
    table.train("pod-0", "pod-1")
    table.join("pod-2")
    table.look()
    table.silence("pod-0", seconds)
    table.silence("pod-1", seconds)
    return table


def test_the_ports_of_members_that_miss_their_renewals_are_tried() -> None:
    table = all_silent(29.0)
    assert not table.look().probes
    table = all_silent(31.0)
    assert set(table.look().probes) == {table.peers["pod-0"].key}, "a leader renews more often"
    table = all_silent(STANDSTILL_SECONDS)
    assert set(table.look().probes) == {table.peers[name].key for name in ("pod-0", "pod-1")}
    assert table.told == (1, "Active", "")


def test_all_members_are_gone_and_their_ports_say_so() -> None:
    table = all_silent(STANDSTILL_SECONDS)
    table.gone = {table.peers[name].key: "its port refuses connections" for name in ("pod-0", "pod-1")}
    table.look()
    assert table.told == (1, "Broken", "PodLost")
    table.join("pod-2", "pod-3")
    table.look()
    assert table.told == (2, "Active", "")


def test_all_members_are_silent_and_nothing_proves_their_end() -> None:
    assert not all_silent(STANDSTILL_SECONDS - 1).look().waiting
    waiting = all_silent(STANDSTILL_SECONDS).look().waiting
    assert "round 1 should run, but no member has renewed its Lease for 180 s (pod-0, pod-1)" in waiting
    one_lives = all_silent(STANDSTILL_SECONDS)
    one_lives.silence("pod-1", 3.0)
    assert not one_lives.look().waiting


def test_silence_and_what_cannot_be_read_end_no_round() -> None:
    """P4, P7."""
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    for name in list(table.peers):
        table.silence(name, 10_000)
    table.look(after=10_000)
    assert table.told == (1, "Active", "")
    del table.peers["pod-1"]
    table.unreadable = frozenset({"pod-1"})
    table.look(after=10_000)
    assert table.told == (1, "Active", "")


def test_what_the_leader_reports_counts_beside_a_claim_that_is_not_credible() -> None:
    """P4: a user writes into its Lease, and its agent renews only what it has announced."""
    table = Table()
    table.join("pod-0", "pod-1", "pod-2")
    table.look()
    table.report("pod-0", established=True)
    leader = table.peers["pod-0"]
    table.peers["pod-0"] = replace(leader, record=replace(leader.record, seen_round=MAX_NUMBER))
    table.look(after=60)
    assert table.told == (1, "Active", "")
    assert table.settled.state.established


@pytest.mark.parametrize(
    ("nonce", "told"), [("nonce-1", (1, "Active", "")), ("nonce-0", (1, "Broken", "NotEstablished"))]
)
def test_what_the_leader_reports_counts_beside_what_cannot_be_read(nonce: str, told: object) -> None:
    """P4: a user writes over its announcement before the coordinator has heard that the round is
    established."""
    table = Table()
    table.join("pod-0", "pod-1", "pod-2")
    table.look()
    assert table.nonce == "nonce-1"
    del table.peers["pod-0"]
    table.unreadable = frozenset({"pod-0"})
    table.reports = {"pod-0": RoundReport(nonce, established=True)}
    table.look()
    table.look(after=60)
    assert table.told == told


class Survivor:
    """The seat of pod-1, which coordinates a round of two, with a directory of Leases as
    ``elasticjob.coordination`` has it. The leader pod-0 has changed its Lease last at second 5."""

    def __init__(self) -> None:
        table = Table(minimum=1, maximum=2)
        table.train("pod-0", "pod-1")
        self.settled, self.peers = table.settled, dict(table.peers)
        me = Identity("pod-1", self.peers["pod-1"].key)
        self.holder, self.now, self.version = str(me), 5.0, 1
        self.seat = Seat(Run("mnist", "run-1", 1, 2), me, table.settled.limits)
        self.changed = {"pod-0": 5.0, "pod-1": 5.0}
        self.renewed = {"pod-0": 5.0, "pod-1": 5.0}
        self.lists = 0
        self.renewals: list[float] = []
        """When the leader renews its Lease."""
        self.failed = NEVER
        """When the API server was last away."""
        self.seat.hear(self.lease(self.settled), self.now)

    def lease(self, settled: Settled) -> RoundLease:
        return RoundLease(str(self.version), self.holder, settled.record().dump(), settled.rest().dump())

    def accuse(self) -> None:
        """Its monitor says that the leader is lost."""
        report = RoundReport(self.settled.state.nonce, leader_lost=True)
        self.hears("pod-1", replace(self.peers["pod-1"], report=report))

    def hears(self, name: str, peer: Peer) -> None:
        self.peers[name], self.changed[name], self.renewed[name] = peer, self.now, self.now

    def sight(self) -> Sight:
        there = {
            n: replace(p, silent=self.now - self.changed[n], renewed=self.now - self.renewed[n])
            for n, p in self.peers.items()
        }
        wall = BEGAN + timedelta(seconds=self.now)
        shown = self.lease(self.settled)
        return Sight(there, wall, "nonce-2", round_lease=shown, failed=self.now - self.failed)

    def play(self, until: float) -> None:
        """Until a round has ended."""
        while self.now < until and self.settled.state.active:
            self.now = round(self.now + 0.1, 1)
            if self.now in self.renewals:
                self.hears("pod-0", self.peers["pod-0"])
            step = self.seat.step(self.now, self.sight())
            if isinstance(step, ListAgain):
                self.lists += 1
                self.changed = {n: changed_at(at, self.now, self.now) for n, at in self.changed.items()}
            elif isinstance(step, Write):
                self.version += 1
                self.settled = step.settled
                self.seat.hear_written(self.lease(step.settled), step, self.now)


def test_a_leader_whose_node_is_gone_is_the_one_that_is_judged_and_soon() -> None:
    """The survivor lists the Leases again first; that the list has the leader's is no sign of life."""
    one = Survivor()
    one.now = 15.0
    one.accuse()
    one.play(60.0)
    assert one.settled.state.cause == "LeaderUnreachable"
    assert one.settled.state.members[0].state == "Unreachable"
    assert one.lists == 1
    assert one.now < 15.0 + 12.0 + RENEWS_SECONDS


def test_a_new_list_after_an_error_of_the_api_server_is_no_sign_of_life_either() -> None:
    one = Survivor()
    one.now = 13.0
    one.accuse()
    one.play(15.0)
    one.changed = dict.fromkeys(one.changed, 15.0)  # silence counts anew: others could not write, either
    one.renewed = dict.fromkeys(one.renewed, NEVER)
    one.play(60.0)
    assert one.settled.state.cause == "LeaderUnreachable"
    assert one.settled.state.members[0].state == "Unreachable"
    assert one.now > 15.0 + 12.0


def waits_for_its_leader() -> tuple[Survivor, float]:
    """One whose leader renews its Lease and has not reported yet that the round is established; and when that
    is too late."""
    one = Survivor()
    leader = one.peers["pod-0"]
    one.settled = replace(one.settled, state=replace(one.settled.state, established=None))
    one.peers["pod-0"] = replace(leader, report=None)
    one.version += 1
    one.seat.hear(one.lease(one.settled), one.now)
    one.renewals = [float(second) for second in range(10, 100, 10)]
    return one, one.now + 2 * one.settled.limits.establish_timeout


def test_a_leader_whose_report_cannot_be_written_has_time_after_the_api_server_was_away() -> None:
    """P4: its writer tries again after a pause, and the round trains. The coordinator renews meanwhile."""
    one, late = waits_for_its_leader()
    one.failed = late - 1.0
    before = one.version
    one.play(late + 12.0)
    assert one.settled.state.active
    assert one.version > before
    report = RoundReport(one.settled.state.nonce, established=True)
    one.hears("pod-0", replace(one.peers["pod-0"], report=report))
    one.play(late + 60.0)
    assert one.settled.state.active
    silent, late = waits_for_its_leader()
    silent.failed = late - 1.0
    silent.play(late + 60.0)
    assert silent.settled.state.cause == "LeaderUnreachable"
    assert late + 12.0 < silent.now < late + 20.0


def test_so_it_has_after_a_request_of_the_coordinator_has_failed() -> None:
    one, late = waits_for_its_leader()
    one.play(late - 1.0)
    one.seat.hear_nothing(one.now, 0.0)
    one.play(late + 12.0)
    assert one.settled.state.active


def test_that_time_begins_when_requests_are_answered_again() -> None:
    one, late = waits_for_its_leader()
    one.play(late - 10.0)
    one.seat.hear_nothing(one.now, 0.0)
    one.now = late - 1.0
    one.seat.hear_read(one.lease(one.settled), one.now)
    one.play(late + 12.0)
    assert one.settled.state.active
    one.play(late + 60.0)
    assert one.settled.state.cause == "LeaderUnreachable"


def test_a_coordinator_that_waits_for_the_report_renews_and_so_notices_that_the_api_server_is_away() -> None:
    one, late = waits_for_its_leader()
    began, before = one.now, one.version
    one.play(late - 1.0)
    assert one.version - before >= (one.now - began) // FORMING_RENEW
    trains = Survivor()
    trains.play(60.0)
    assert trains.version == 1


def test_so_it_has_after_another_has_taken_over() -> None:
    """It does not know whether the API server was away before."""
    one = Survivor()
    one.now = 20.0
    one.version += 1
    claim = Write(one.settled, version="1", claim="this agent cannot reach it any more")
    one.seat.hear_written(one.lease(one.settled), claim, one.now)
    one.accuse()
    one.play(34.0)
    assert one.settled.state.active
    one.play(60.0)
    assert one.settled.state.cause == "LeaderUnreachable"


def test_a_leader_that_renews_is_believed() -> None:
    one = Survivor()
    one.now = 15.0
    one.accuse()
    one.renewals = [18.0]
    one.play(60.0)
    assert (one.lists, one.now) == (2, 18.1), "the list for the accuser has taken nothing back"
    assert (one.settled.state.cause, one.settled.state.members[1].state) == ("Unreachable", "Unreachable")


@pytest.mark.parametrize(
    ("before", "given_up", "now", "counts_from"),
    [(10.0, 22.0, 22.1, 13.1), (10.0, 22.0, 82.0, 73.0), (21.0, 22.0, 22.1, 22.1)],
)
def test_the_time_without_a_watch_is_no_silence(
    before: float, given_up: float, now: float, counts_from: float
) -> None:
    assert changed_at(before, given_up, now) == pytest.approx(counts_from)


def test_a_copied_lease_does_not_stop_the_run() -> None:
    """P7: a Lease with another's id would make a record that nobody can read."""
    table = Table(minimum=2, maximum=3, last_call=0)
    table.join("pod-0", "pod-1", "pod-2")
    copied = replace(table.peers["pod-2"], record=table.peers["pod-1"].record)
    table.peers["pod-2"] = copied
    table.silence("pod-1", 1.9)
    table.silence("pod-2", 2.1)
    table.look()
    table.look(after=1.0)
    assert table.members == ["pod-0", "pod-1"]
    Settled.parse(table.settled.record().dump(), table.settled.rest().dump())


def test_a_record_of_its_own_that_it_cannot_read_is_not_written_again_at_once() -> None:
    one = Survivor()
    unreadable = RoundLease("7", one.holder, "{", "{")
    step = Write(one.settled, version="6")
    one.seat.hear_written(unreadable, step, 20.0)
    assert not isinstance(one.seat.step(20.1, one.sight()), Write)
    assert isinstance(one.seat.step(21.1, one.sight()), Write)
