"""What reaches an agent from others: round records of any bytes, and what its own workers leave in files."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from devcluster.wait import wait_for
from elasticjob.api.leases import Lease
from elasticjob.contract.fields import MAX_INT32, RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.names import ROUND_ANNOTATION
from elasticjob.contract.reports import FailureReport, ProgressReport
from elasticjob.contract.round_record import Phase, RoundRecord
from elasticjob.core.participant import Participant
from elasticjob.core.progress import ProgressMonitor
from elasticjob.leases import round_source
from elasticjob.leases.round_source import LeaseRoundSource
from elasticjob.watch.step_files import StepReader
from elasticjob.worker.progress import LAYOUT
from elasticjob.workers.failures import RoundWorkers, describe, first_noticed
from elasticjob.workers.torch_agent import FailedWorker, _text
from tests.unit import hostile

ACTIVE = RoundRecord("uid", 3, "Active", "n", ("id-0", "id-1"), "10.0.0.1:80", size=2, leader_id="id-0")
SEVERAL = settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def a_member() -> Participant:
    core = Participant("uid")
    core.observe(RoundRecord("uid", 2, "Broken"))
    core.announce("id-1", "127.0.0.1:80", False, 1)
    core.observe(ACTIVE)
    core.take_action()
    assert core.membership is not None
    return core


@given(st.lists(hostile.record(ACTIVE.dump()), max_size=4))
@SEVERAL
def test_no_round_record_raises_or_ends_a_round_but_one_that_says_so(texts: list[str]) -> None:
    core = a_member()
    ends = False
    for text in texts:
        try:
            record = RoundRecord.parse(text)
        except RecordError:
            continue
        newer = record.number > 3 or (record.number == 3 and record.phase in (Phase.BROKEN, Phase.CLOSED))
        ends = ends or (newer and record.job_uid == "uid")
        core.observe(record)
        core.take_action()
        assert isinstance(core.round_hung(), bool)
        for seconds in (record.wait_renew_period_seconds, record.limits.establish_timeout):
            assert 0 < seconds <= MAX_INT32
            assert seconds < threading.TIMEOUT_MAX
    assert not core.end_reason() or ends


@pytest.mark.parametrize(
    "change",
    [
        {"waitRenewPeriodSeconds": 2**53 - 1},
        {"limits": {"heartbeatTimeoutSeconds": 2**31}},
        {"limits": []},
        {"leaderEndpoint": "nowhere"},
        {"leaderEndpoint": "h:" + "9" * 5000},
        {"leaderEndpoint": "a b:1"},
        {"memberIDs": ["\ud800"]},
    ],
)
def test_a_record_that_a_thread_could_not_act_upon_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        RoundRecord.parse(json.dumps({**json.loads(ACTIVE.dump()), **change}))


class EndingApi:
    """An API whose watches end in order at once."""

    def __init__(self) -> None:
        self.first, self.second = threading.Event(), threading.Event()

    def watch(self, _name: str) -> Iterator[Lease | None]:
        yield None
        (self.second if self.first.is_set() else self.first).set()

    def stop(self) -> None:
        pass


def test_a_watch_that_ends_at_once_is_not_opened_as_fast_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_source, "MIN_PAUSE_SECONDS", 3600.0)
    api = EndingApi()
    watcher = LeaseRoundSource(api, api, "job", pytest.fail)  # type: ignore[arg-type]
    watcher.start()
    try:
        assert api.first.wait(60)
        assert not api.second.wait(0.5)
    finally:
        watcher.stop()


class OddApi:
    """An API whose watch brings what no API server sends, then a good record."""

    def __init__(self, odd: list[Any]) -> None:
        self._odd = list(odd)

    def watch(self, _name: str) -> Iterator[Lease | None]:
        if self._odd:
            odd = self._odd.pop(0)
            if isinstance(odd, Exception):
                raise odd
            yield odd
        yield Lease("9", "", {ROUND_ANNOTATION: ACTIVE.dump()})

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    "odd",
    [
        AttributeError("'list' object has no attribute 'get'"),
        RecursionError("nested"),
        Lease("1", "", {ROUND_ANNOTATION: 5}),  # type: ignore[dict-item]
        Lease("1", "", [ROUND_ANNOTATION]),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_the_watch_survives_whatever_arrives(odd: Any) -> None:
    seen: list[RoundRecord] = []
    watcher = LeaseRoundSource(OddApi([odd]), OddApi([odd]), "job", seen.append)  # type: ignore[arg-type]
    watcher.start()
    try:
        wait_for(lambda: seen, 60, "the record that came after it", interval=0.02)
    finally:
        watcher.stop()


def test_what_agents_log_of_a_record_is_one_line() -> None:
    seen: list[RoundRecord] = []
    watcher = LeaseRoundSource(OddApi([]), OddApi([]), "job", seen.append)  # type: ignore[arg-type]
    odd = replace(
        ACTIVE, phase="Broken", cause="a\nb", message="no\n\x1b[2Kround 7", waiting_message="x\u202e" * 9_000
    )
    for record in (odd, ACTIVE):
        watcher.hear(Lease("1", "", {ROUND_ANNOTATION: record.dump()}))
    assert (seen[0].cause, seen[0].message) == ("a b", "no [2Kround 7")
    assert seen[0].waiting_message.isprintable()
    assert len(seen[0].waiting_message) <= round_source.MAX_SENTENCE
    assert seen[1] == ACTIVE


def test_what_nobody_can_read_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stands there at each new watch."""
    monkeypatch.setattr(round_source, "MIN_PAUSE_SECONDS", 0.001)
    caplog.set_level(logging.DEBUG)
    seen: list[RoundRecord] = []
    odd = [Lease("1", "", [ROUND_ANNOTATION]) for _ in range(5)]  # type: ignore[arg-type]
    watcher = LeaseRoundSource(OddApi(odd), OddApi(odd), "job", seen.append)  # type: ignore[arg-type]
    watcher.start()
    try:
        wait_for(lambda: seen, 60, "the record that came after it", interval=0.02)
    finally:
        watcher.stop()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert told[0].exc_info is not None
    assert len(caplog.records) > len(odd)


@given(
    st.one_of(hostile.value, st.dictionaries(st.sampled_from(["message", "extraInfo"]), hostile.value)),
    st.none() | st.integers(-200, 300),
)
@SEVERAL
def test_a_workers_error_of_any_shape_becomes_a_report(message: Any, code: int | None) -> None:
    """``message`` is what torch has read from the worker's error file."""
    failure = ProcessFailure.__new__(ProcessFailure)
    failure.error_file, failure.message = "/tmp/error.json", message
    text = _text(failure)
    report = FailureReport(1, 0, describe(code, text), code)
    again = FailureReport.parse(report.dump())
    assert again.message == report.message
    assert again.exit_code == code


@given(st.lists(hostile.value, min_size=2, max_size=3))
@SEVERAL
def test_times_of_any_kind_in_error_files_do_not_raise(times: list[Any]) -> None:
    workers = RoundWorkers(None)
    failures = [FailedWorker(rank, 100 + rank, 1, "text", time) for rank, time in enumerate(times)]
    report = workers.failure(1, 0, failures)
    assert report is not None
    assert FailureReport.parse(report.dump()) == report


def test_the_first_of_times_that_can_be_compared_is_found() -> None:
    first = first_noticed([FailedWorker(0, 1, 1, "late", 9), FailedWorker(1, 2, 1, "early", 3)])
    assert first is not None
    assert first.text == "early"


@given(
    st.binary(max_size=60)
    | st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4).map(lambda four: checked(*four))
)
@SEVERAL
def test_a_step_file_of_any_bytes_gives_a_report_that_the_operator_reads(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "0").write_bytes(data)
    (folder / "not a rank").write_bytes(data)
    monitor = ProgressMonitor("nonce", 1000.0, Limits(hang_timeout=30))
    monitor.tick(1001.0, StepReader(str(folder)).read(), {})
    if monitor.report is not None:
        assert ProgressReport.parse(monitor.report.dump()) == monitor.report


def checked(first_step: int, first_at: int, step: int, at: int) -> bytes:
    """A file whose check is right."""
    return LAYOUT.pack(first_step, first_at, step, at, ~(first_step ^ first_at) ^ step ^ at)
