"""What each member reports when a round is not established: real TCPStores, one of three stays away."""

from __future__ import annotations

import threading
from collections.abc import Callable

from devcluster.wait import wait_for
from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import RoundReport
from elasticjob.core.participant import Membership
from elasticjob.store.server import Server, serve
from elasticjob.watch.establish import AgentContext, Establishment

LIMIT = 0.5


class Round:
    """Members of one round of three, as many as are started. ``reports`` are what each has said, by rank."""

    def __init__(self) -> None:
        self._server = Server(serve())
        self._changed = threading.Condition()
        self._end_reason = ""
        self._threads: list[threading.Thread] = []
        self.reports: dict[int, list[RoundReport]] = {}

    def start(self, rank: int) -> None:
        leader = f"127.0.0.1:{self._server.port}"
        membership = Membership(
            *("uid", 1, "n", "abc"[rank], rank, 3, leader),
            Limits(establish_timeout=LIMIT, heartbeat_timeout=3),
            member_ids=("a", "b", "c"),
        )
        reports = self.reports.setdefault(rank, [])
        server = self._server if rank == 0 else Server(serve())
        attempt = Establishment(
            membership,
            server,
            AgentContext(
                changed=self._changed,
                end_reason=lambda: self._end_reason,
                healthy_seconds=lambda: 1e6,
                report=reports.append,
                local_addr="127.0.0.1",
            ),
        )
        self._threads.append(threading.Thread(target=attempt.run, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        with self._changed:
            self._end_reason = "enough"
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(60)

    def wait(self, said: Callable[[], object], what: str) -> None:
        wait_for(said, 60, lambda: f"{what}: {self.reports}")


def test_a_member_that_waits_for_others_does_not_accuse_the_leader_first() -> None:
    """Else two members that wait for a third would bar a leader that both have reached."""
    one = Round()
    one.start(1)  # its time is over before the leader's
    one.start(0)
    try:
        one.wait(lambda: one.reports[0], "the leader names the third")
        assert one.reports[0][0].unarrived_ranks == (2,)
        assert one.reports[1] == [], "the leader had the first word"
        one.wait(lambda: one.reports[1], "an operator that does nothing: the member gives the leader up")
        assert one.reports[1][0].leader_lost
    finally:
        one.end()


def test_a_member_that_reaches_its_round_after_all_accuses_the_leader_no_longer() -> None:
    """What reads its Lease only now must not end a round that trains."""
    one = Round()
    one.start(0)
    one.start(1)
    try:
        one.wait(lambda: one.reports[1], "an operator that does nothing: the member gives the leader up")
        assert one.reports[1][0].leader_lost
        one.start(2)
        one.wait(lambda: len(one.reports[1]) > 1, "the third comes after all")
        assert one.reports[1][-1] == RoundReport("n")
        assert one.reports[2] == []
    finally:
        one.end()
