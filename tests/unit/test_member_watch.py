"""What a member says of its round, and that it says nothing of one that it has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from elasticjob.contract.reports import MAX_MILLISECONDS, ProgressReport, ResumedReport, RoundReport
from elasticjob.core.heartbeats import Loss, ProbeResult
from elasticjob.core.participant import Enter, Membership
from elasticjob.drain.board import StopBoard
from elasticjob.leases.writer import LeaseWriter
from elasticjob.warm.eligibility import Starts
from elasticjob.warm.workers import WarmWorkers
from elasticjob.watch import member_watch
from elasticjob.watch.heartbeats import Listener
from elasticjob.watch.member_flags import MemberFlag
from elasticjob.watch.member_watch import MemberWatch, WorkerFiles
from elasticjob.watch.step_files import StepReader
from elasticjob.worker.progress import PROGRESS_DIR_ENV
from elasticjob.worker.resumed import Resumed, Source, say_resumed
from elasticjob.workers.speakers import Speakers
from tests.unit.memory_api import Leases, MemoryApi
from tests.unit.test_participant import ROUND, joined

LOST = {1: Loss("silent for 10 s", ProbeResult.SILENT, 10.0)}
NOT_PASSED = MagicMock(passed=False)
FILES = WorkerFiles(StepReader(""), StopBoard("", None), Speakers("", ""), None)


class HeldHeartbeats:
    """Heartbeats whose thread is held where it is about to say what it has found."""

    def __init__(
        self,
        membership: Membership,
        _steps: StepReader,
        listener: Listener,
        flags: Sequence[MemberFlag],
    ) -> None:
        self.flags = flags
        self.listener = listener
        self.nonce = membership.nonce

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def leave(self) -> None: ...

    def tell_left(self) -> None: ...

    def watched(self) -> dict[int, str]:
        return {1: "127.0.0.1:1"}

    def progress(self) -> None: ...

    def says_all(self) -> None:
        self.listener.lost(LOST)
        hang = RoundReport(self.nonce, hung=True, silent_milliseconds=60_000, message="no step for 60 s")
        self.listener.judged(hang)
        self.listener.looked()
        self.listener.progressed(ProgressReport(self.nonce, 0, 7, 0, 0), True)
        for flag in self.flags:
            flag.on_all()


def held(monkeypatch: pytest.MonkeyPatch) -> list[HeldHeartbeats]:
    """The heartbeats of all rounds, as they are made."""
    made: list[HeldHeartbeats] = []

    def make(*arguments: Any) -> HeldHeartbeats:
        made.append(HeldHeartbeats(*arguments))
        return made[-1]

    monkeypatch.setattr(member_watch, "Heartbeats", make)
    return made


class Said(LeaseWriter):
    """What would be written."""

    def __init__(self) -> None:
        super().__init__(MemoryApi(Leases()), "pod", "uid", {})
        self.words: list[str] = []
        self.along: list[str] = []

    def write(self, **annotations: str | None) -> None:
        self.words += annotations

    def attach(self, **annotations: str | None) -> None:
        self.along += [f"{key}: {text}" for key, text in annotations.items()]


def test_the_log_says_once_whose_workers_do_not_call_should_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = held(monkeypatch)
    core = joined(ROUND)
    step = core.take_action()
    assert isinstance(step, Enter)
    watch = MemberWatch(core, Said(), lambda _: None)
    watch.begin(step.membership, NOT_PASSED, FILES)
    say = made[0].flags[0].on_few
    assert say is not None
    say([1])
    say([0, 2])
    watch.stop_heartbeats()
    say([1])
    text = "round 1: not all workers of {} call should_stop, as others do, so no planned change waits for a "
    text += "checkpoint: call it on every rank"
    assert caplog.messages == [text.format("group rank 1"), text.format("group ranks 0, 2")]


def test_nothing_is_said_of_a_round_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that probes a port is not waited for when the round is left. What it finds then is no loss of
    the next round, whose members have not yet been announced."""
    made = held(monkeypatch)
    core = joined(ROUND)
    step = core.take_action()
    assert isinstance(step, Enter)
    said = Said()
    warm = WarmWorkers()
    watch = MemberWatch(core, said, lambda _: None, warm)
    told: list[Starts] = []
    warm._starts, warm._tell = Starts(preparing=True), told.append
    watch.begin(step.membership, NOT_PASSED, FILES)
    made[0].says_all()
    assert said.words == ["report", "report", "progress", "drain", "fenced"], (
        "while the round runs, all of it"
    )
    assert told == [Starts()], "no write is made for this"

    watch.stop_heartbeats()
    core.announce("next", "h:2", False, 1)
    made[0].says_all()
    assert len(said.words) == 5
    assert len(told) == 1


@pytest.mark.parametrize(
    ("cause", "level", "text"),
    [
        ("PodDeleted", "INFO", "round 1 is over: group rank 1 has gone"),
        ("Evicted", "INFO", "round 1 is over: group rank 1 has gone"),
        ("WorkerFailed", "WARNING", "round 1: group rank 1 is lost"),
    ],
)
def test_who_has_left_with_notice_is_not_called_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: str, level: str, text: str
) -> None:
    """The pod was deleted, and has drained; its process ends while the others wait for the next round."""
    probes: list[Callable[[Mapping[int, Loss]], None]] = []

    def probe(*given: Any) -> MagicMock:
        probes.append(given[2])
        return MagicMock()

    monkeypatch.setattr(member_watch, "Heartbeats", HeldHeartbeats)
    monkeypatch.setattr(member_watch, "PostRoundProbe", probe)
    core = joined(ROUND)
    step = core.take_action()
    assert isinstance(step, Enter)
    said = Said()
    watch = MemberWatch(core, said, lambda _: None)
    watch.begin(step.membership, NOT_PASSED, FILES)
    core.observe(replace(ROUND, phase="Broken", cause=cause))
    watch.leave()
    with caplog.at_level("INFO", "elasticjob"):
        probes[0](LOST)
    assert [(r.levelname, r.message[: len(text)]) for r in caplog.records] == [(level, text)]
    assert said.words == ["report"], "the operator judges"


def watched_round(
    monkeypatch: pytest.MonkeyPatch, folder: Path, group_rank: int = 0
) -> tuple[MemberWatch, Said, Listener]:
    """A member's watch, what it writes, and what hears its heartbeats, in a round whose files are there."""
    made: list[HeldHeartbeats] = []

    def make(*arguments: Any) -> HeldHeartbeats:
        made.append(HeldHeartbeats(*arguments))
        return made[-1]

    monkeypatch.setattr(member_watch, "Heartbeats", make)
    monkeypatch.setenv(PROGRESS_DIR_ENV, str(folder))
    core, said = joined(ROUND), Said()
    step = core.take_action()
    assert isinstance(step, Enter)
    watch = MemberWatch(core, said, lambda _: None)
    files = replace(FILES, steps=StepReader(str(folder)))
    watch.begin(replace(step.membership, group_rank=group_rank), NOT_PASSED, files)
    return watch, said, made[0].listener


def test_where_the_state_came_from_goes_along_once_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, said, listener = watched_round(monkeypatch, tmp_path)
    listener.looked()
    assert said.along == [], "the script has not resumed yet"
    say_resumed(Resumed(7, Source.PEER, 640, pieces_from_peers=1))
    with caplog.at_level("INFO", "elasticjob"):
        listener.looked()
        say_resumed(Resumed(0, Source.NOTHING, 1))
        listener.looked()
    report = ResumedReport(ROUND.nonce, 7, "Peer", 640)
    assert said.along == [f"resumed: {report.dump()}"]
    assert said.words == [], "it is worth no write of its own"
    assert [record.message for record in caplog.records] == [
        "round 1: the state is that of step 7, from Peer, 1 piece from other pods, after 640 ms"
    ]


def test_a_member_that_leaves_says_where_its_state_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its round ends before the next heartbeat."""
    watch, said, _ = watched_round(monkeypatch, tmp_path)
    say_resumed(Resumed(7, Source.STORAGE, 2**50))
    watch.attach_progress()
    assert said.along == [f"resumed: {ResumedReport(ROUND.nonce, 7, 'Storage', MAX_MILLISECONDS).dump()}"]


def test_only_the_leader_of_a_round_that_runs_says_where_the_state_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, said, member = watched_round(monkeypatch, tmp_path, group_rank=1)
    say_resumed(Resumed(7, Source.MEMORY, 640))
    member.looked()
    assert said.along == []
    watch, said, leader = watched_round(monkeypatch, tmp_path)
    watch.stop_heartbeats()
    leader.looked()
    assert said.along == []
