"""Rounds too large for the record to name the members: the leader reads who they are and tells the ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from devcluster.wait import wait_for
from elasticjob.api.errors import ApiError, Unavailable
from elasticjob.contract.fields import RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import MemberList
from elasticjob.core.participant import RANK_UNKNOWN, Membership
from elasticjob.store.server import Server, serve
from elasticjob.watch.establish import AgentContext, Established, Establishment

LIST = MemberList("uid", 1, "n", ("a", "b", "c"))


class Round:
    """A round of three; ``answers`` is what the leader's reading of the list meets, the last one again and
    again."""

    def __init__(self, *answers: MemberList | Exception, limit: float = 30.0) -> None:
        self._server = Server(serve())
        self._changed = threading.Condition()
        self._answers = list(answers) or [LIST]
        self._limit = limit
        self._threads: list[threading.Thread] = []
        self._end_reason = ""
        self.attempts: dict[str, Establishment] = {}
        self.done: dict[str, Established | None] = {}
        self.reports: dict[str, RoundReport] = {}

    def start(self, *ids: str) -> None:
        for one in ids:
            self._start(one)

    def _start(self, one: str) -> None:
        leads = one == "a"
        limits = Limits(establish_timeout=self._limit, heartbeat_timeout=3)
        leader = f"127.0.0.1:{self._server.port}"
        m = Membership("uid", 1, "n", one, 0 if leads else RANK_UNKNOWN, 3, leader, limits)

        def report(sent: RoundReport) -> None:
            self.reports[one] = sent

        attempt = self.attempts[one] = Establishment(
            m,
            self._server if leads else Server(serve()),
            AgentContext(
                changed=self._changed,
                end_reason=lambda: self._end_reason,
                healthy_seconds=lambda: 1e6,
                report=report,
                list_members=self._read,
                local_addr="127.0.0.1",
            ),
        )

        def run() -> None:
            self.done[one] = attempt.run()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _read(self) -> MemberList:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        with self._changed:
            self._end_reason = "enough"
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(10)

    def ranks(self) -> dict[str, int | None]:
        return {one: done.group_rank if done else None for one, done in self.done.items()}

    def wait(self, predicate: Callable[[], object], what: str) -> None:
        wait_for(predicate, 30, lambda: f"{what}: {self.ranks()}, {self.reports}")


@pytest.mark.parametrize(
    "first",
    [
        (),
        (Unavailable("GET: 503"),),
        (ApiError("GET: 404"), RecordError("not JSON")),
        (MemberList("uid", 1, "older", ("a", "x", "y")), MemberList("former", 1, "n", ("x", "y", "a"))),
    ],
    ids=["at once", "after an outage", "not there, then garbage", "of other rounds before"],
)
def test_everyone_learns_its_rank_from_the_leader(first: tuple[MemberList | Exception, ...]) -> None:
    """I2: whatever the leader has to read first, the ranks are those of the list of this very round."""
    one = Round(*first, LIST)
    one.start("b", "c", "a")
    try:
        one.wait(lambda: len(one.done) == 3, "all have met")
        assert one.ranks() == {"a": 0, "b": 1, "c": 2}
        assert not one.reports
    finally:
        one.end()


def test_who_is_not_in_the_list_learns_so_and_enters_nothing() -> None:
    """I4: a standby, or one that was given up; it accuses no member."""
    one = Round()
    one.start("a", "zombie")
    try:
        one.wait(lambda: "zombie" in one.done, "it knows")
        assert one.done["zombie"] is None
        assert one.attempts["zombie"].not_a_member
        assert "a" not in one.done, "nobody else has come"
        one.start("b", "c")
        one.wait(lambda: len(one.done) == 4, "the members meet without it")
        assert one.ranks() == {"a": 0, "b": 1, "c": 2, "zombie": None}
        assert not one.reports
    finally:
        one.end()


def test_a_leader_that_can_not_read_the_list_names_nobody() -> None:
    """Members that have reached it give it twice the time; after its own time it accuses no other."""
    one = Round(Unavailable("GET: no answer"), limit=0.5)
    one.start("a", "b")
    try:
        one.wait(lambda: "b" in one.reports, "the member says that it waits for the leader")
        assert one.reports["b"].leader_lost
        assert not one.attempts["b"].not_a_member
        assert "a" not in one.reports
    finally:
        one.end()
    assert one.ranks() == {"a": None, "b": None}


def test_those_who_do_not_come_are_named_by_rank() -> None:
    one = Round(limit=0.5)
    one.start("a", "b")
    try:
        one.wait(lambda: "a" in one.reports, "the leader's report")
        assert one.reports["a"].unarrived_ranks == (2,)
    finally:
        one.end()
