"""Steps on their way from the members' workers through the round's store to the leader: real TCPStores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from torch.distributed import PrefixStore

from devcluster.wait import wait_for
from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.core.participant import Membership
from elasticjob.store.connection import KeyValueStore
from elasticjob.store.server import serve
from elasticjob.watch import member_flags
from elasticjob.watch.heartbeats import (
    ENDPOINT_KEY,
    HEARTBEAT_KEY,
    NO_STEP,
    STEP_KEY,
    Heartbeats,
)
from elasticjob.watch.member_flags import MemberFlag
from elasticjob.watch.step_files import StepReader
from elasticjob.worker.progress import StepFile
from tests.unit.listening import Listening


class Member:
    """One agent's heartbeats, what its workers report, and what the thread says."""

    def __init__(self, membership: Membership, folder: Path) -> None:
        folder.mkdir()
        self.workers = [StepFile(str(folder / str(local_rank))) for local_rank in range(2)]
        self.reports: list[tuple[ProgressReport, bool]] = []
        self.hangs: list[RoundReport] = []
        self.lost: list[object] = []
        self.verified: list[float] = []
        self.ready: set[str] = set()
        self.all_said: list[str] = []
        self.few: list[list[int]] = []
        self.heartbeats = Heartbeats(
            membership,
            StepReader(str(folder)),
            Listening(
                lost=self.lost.append,
                progressed=lambda report, first: self.reports.append((report, first)),
                judged=self.hangs.append,
                verify_source=self.verified.append,
            ),
            [
                MemberFlag(
                    key, partial(self._is_so, key), partial(self.all_said.append, key), self.few.append
                )
                for key in ("a/", "b/")
            ],
        )
        self.heartbeats.start()

    def _is_so(self, key: str) -> bool:
        return key in self.ready

    def steps(self) -> list[tuple[int, int]]:
        return [(report.first_step, report.step) for report, _ in self.reports]


@pytest.fixture
def members(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Member]]:
    """The members of one round, as many as the parameter says; nothing for 3 s is a hang."""
    size = request.param
    server = serve()
    leader = f"127.0.0.1:{server.port}"
    ids = tuple("abc"[:size])
    limits = Limits(hang_timeout=3)
    all_of_them = [Membership("uid", 1, "n", ids[i], i, size, leader, limits) for i in range(size)]
    store = cast(KeyValueStore, PrefixStore(all_of_them[0].prefix, server))
    for rank in range(size):
        store.multi_set(
            [f"{HEARTBEAT_KEY}{rank}", f"{STEP_KEY}{rank}", f"{ENDPOINT_KEY}{rank}"],
            ["0", str(NO_STEP), f"127.0.0.1:{server.port}"],
        )
    started = [Member(one, tmp_path / one.id) for one in all_of_them]
    yield started
    for member in started:
        member.heartbeats.stop()
    del store, server


@pytest.mark.parametrize("members", [3], indirect=True)
def test_the_leader_knows_the_highest_step_of_all(members: list[Member]) -> None:
    leader, one, other = members
    one.workers[1].write(4)
    wait_for(lambda: leader.steps() == [(4, 4)], 60, lambda: str(leader.steps()))
    assert leader.reports[0][1], "the first"
    other.workers[0].write(9)
    one.workers[0].write(8)
    leader.workers[0].write(7)
    wait_for(lambda: leader.steps()[-1] == (4, 9), 60, lambda: str(leader.steps()))
    assert [first for _, first in leader.reports].count(True) == 1
    assert not one.reports
    assert not other.reports
    said = {name: member.heartbeats.progress() for name, member in (("one", one), ("other", other))}
    assert {name: report.step for name, report in said.items() if report is not None} == {
        "one": 8,
        "other": 9,
    }, "each knows of its own workers, whatever becomes of the leader"
    assert all(not member.lost for member in members)


@pytest.mark.parametrize("members", [1, 3], indirect=True)
def test_the_leader_is_told_once_when_all_have_said_something(members: list[Member]) -> None:
    for member in members[1:]:
        member.ready |= {"a/", "b/"}
    members[0].ready.add("b/")
    wait_for(lambda: members[0].all_said == ["b/"], 60, "b is said by all")
    members[0].ready.add("a/")
    wait_for(lambda: members[0].all_said == ["b/", "a/"], 60, lambda: str(members[0].all_said))
    members[0].workers[0].write(4)
    wait_for(lambda: members[0].steps() == [(4, 4)], 60, "another heartbeat")
    assert [member.all_said for member in members] == [["b/", "a/"], *([] for _ in members[1:])]


@pytest.mark.parametrize("members", [3], indirect=True)
@pytest.mark.parametrize(("ready", "missing"), [((0,), [1, 2]), ((0, 2), [1]), ((1,), [0, 2]), ((1, 2), [0])])
def test_the_leader_is_told_once_which_members_have_not_said_something(
    members: list[Member], monkeypatch: pytest.MonkeyPatch, ready: tuple[int, ...], missing: list[int]
) -> None:
    """Also of itself; and those that say it later are heard."""
    monkeypatch.setattr(member_flags, "FEW_SECONDS", 2.5)
    for rank in ready:
        members[rank].ready.add("a/")
    wait_for(lambda: members[0].few, 60, "some have not said it")
    assert members[0].all_said == []
    for member in members:
        member.ready.add("a/")
    wait_for(lambda: members[0].all_said, 60, "all have said it")
    assert [member.few for member in members] == [[missing], [], []]


@pytest.mark.parametrize("members", [3], indirect=True)
def test_a_round_that_does_not_get_on_is_said_once_and_by_the_leader(members: list[Member]) -> None:
    members[1].workers[0].write(4)
    wait_for(lambda: members[0].hangs, 30, lambda: str(members[0].steps()))
    hang = members[0].hangs[0]
    assert hang.hung
    assert hang.silent_milliseconds is not None
    assert hang.silent_milliseconds >= 3000
    assert hang.message.startswith("no step after step 4 for ")
    reported = members[0].heartbeats.progress()
    members[2].workers[0].write(5)
    wait_for(lambda: members[0].steps()[-1] == (4, 5), 60, lambda: str(members[0].steps()))
    assert reported is not None
    assert [len(member.hangs) for member in members] == [1, 0, 0]


@pytest.mark.parametrize("members", [1], indirect=True)
def test_a_round_of_one_has_progress_and_hangs_too(members: list[Member]) -> None:
    leader = members[0]
    leader.workers[0].write(1)
    leader.workers[1].write(2)
    wait_for(lambda: leader.steps() == [(1, 2)], 60, lambda: str(leader.steps()))
    leader.workers[0].write(3)
    now = leader.heartbeats.progress()
    assert now is not None
    assert now.step == 3, "what is said at the round's end is what there is then"
    wait_for(lambda: leader.hangs, 30, lambda: str(leader.steps()))
