"""What the leader's Lease says of progress and hangs, and how often it is written: Leases in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster.wait import wait_for
from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.resolver import shorten_lookups
from elasticjob.agent.settings import Settings
from elasticjob.contract import names
from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import ProgressReport
from elasticjob.contract.round_record import RoundRecord
from tests.unit.handler.joining import Joining, ListedAgent, form
from tests.unit.memory_api import Leases, MemoryApi, broken

WORKER = """
import sys, time
from elasticjob import report_progress
for line in sys.stdin:
    report_progress(int(line))
    print(line.strip(), flush=True)
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the handler sets for workers must not stay."""
    shorten_lookups("attempts:0")
    for name in (names.ROUND_ENV, names.PROGRESS_DIR_ENV, "PYTHONFAULTHANDLER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def handler(leases: Leases) -> Iterator[K8sRendezvousHandler]:
    settings = Settings("ns", "job", pod="a", pod_uid="uid-a")
    one = K8sRendezvousHandler(settings, "run", lambda: MemoryApi(leases))
    yield one
    one.shutdown()


class Worker:
    """A real process that reports what it is told to."""

    def __init__(self) -> None:
        environment = {**os.environ, "LOCAL_RANK": "0"}
        command = [sys.executable, "-u", "-c", WORKER]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def report(self, step: int) -> None:
        """Returns when it has."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{step}\n"


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Workers that end with the test."""
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.process.kill()
        worker.process.communicate()


def join(
    handler: K8sRendezvousHandler, leases: Leases, hang_timeout: int = 0, agent: ListedAgent | None = None
) -> RoundRecord:
    joining = Joining(handler, agent)
    record = form(leases, 1, "a", limits=Limits(hang_timeout=hang_timeout))
    joining.result()
    leases.wait_for(lambda: leases.report("a"), "the leader's report")
    return record


def progress(leases: Leases) -> ProgressReport | None:
    text = leases.annotation("a", names.PROGRESS_ANNOTATION)
    return None if text is None else ProgressReport.parse(text)


def steps(leases: Leases) -> tuple[str, int, int] | None:
    report = progress(leases)
    return None if report is None else (report.nonce, report.first_step, report.step)


def test_progress_costs_no_write_of_its_own(
    handler: K8sRendezvousHandler, leases: Leases, workers: list[Worker]
) -> None:
    """A join, the leader's report, the first step; all others go with the next announcement."""
    record = join(handler, leases)
    assert leases.writes == 2
    workers.append(Worker())
    workers[0].report(40)
    leases.wait_for(lambda: progress(leases), "the first step is said at once")
    assert steps(leases) == ("n1", 40, 40)
    assert leases.writes == 3
    for step in range(41, 61):
        workers[0].report(step)
    said = handler._parts.lease._annotations
    wait_for(lambda: '"step":60,' in (said[names.PROGRESS_ANNOTATION] or ""), 60, lambda: str(said))
    assert leases.writes == 3, "it waits for a renewal"
    workers[0].report(61)
    leases.publish(broken(record))
    wait_for(handler.num_nodes_waiting, 60, "the end is seen", interval=0.01)
    joining = Joining(handler)
    leases.announced("a", but=record.member_ids[0])
    assert steps(leases) == ("n1", 40, 61), (
        "the last state of the round, in the same write as the announcement"
    )
    assert leases.writes == 4
    report = progress(leases)
    assert report is not None
    assert report.training_milliseconds > 0
    form(leases, 2, "a")
    joining.result()


def test_it_rides_on_a_renewal(
    handler: K8sRendezvousHandler, leases: Leases, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.agent.in_round.LEADER_RENEW_SECONDS", 0.5)
    join(handler, leases)
    workers.append(Worker())
    workers[0].report(1)
    leases.wait_for(lambda: progress(leases), "the first step")
    workers[0].report(2)
    leases.wait_for(lambda: steps(leases) == ("n1", 1, 2), "the next renewal says it")


def test_a_hang_is_said_at_once_with_its_evidence(
    handler: K8sRendezvousHandler, leases: Leases, workers: list[Worker]
) -> None:
    join(handler, leases, hang_timeout=2)
    workers.append(Worker())
    workers[0].report(5)
    workers[0].report(6)
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.hung, "the hang is said")
    report = leases.report("a")
    assert report is not None
    assert report.established
    assert report.silent_milliseconds is not None
    assert report.silent_milliseconds >= 2000
    assert report.message == f"no step after step 6 for {report.silent_milliseconds / 1000:.0f} s"
    assert steps(leases) == ("n1", 5, 6), "and how far it came, in the same write"
    assert leases.writes == 4


def test_the_last_step_is_said_with_success(
    handler: K8sRendezvousHandler, leases: Leases, workers: list[Worker]
) -> None:
    join(handler, leases)
    workers.append(Worker())
    workers[0].report(1)
    leases.wait_for(lambda: progress(leases), "the first step")
    workers[0].report(7)
    assert handler._rounds.active is not None
    handler._rounds.active.succeeded()
    leases.wait_for(lambda: (p := leases.participant("a")) is not None and p.state == "Succeeded", "success")
    assert steps(leases) == ("n1", 1, 7)


def test_the_workers_are_told_where_to_report(handler: K8sRendezvousHandler, leases: Leases) -> None:
    record = join(handler, leases)
    folder = Path(os.environ[names.PROGRESS_DIR_ENV])
    assert folder.is_dir()
    assert os.environ["PYTHONFAULTHANDLER"] == "1"
    leases.publish(broken(record))
    joining = Joining(handler)
    leases.announced("a", but=record.member_ids[0])
    form(leases, 2, "a")
    joining.result()
    second = Path(os.environ[names.PROGRESS_DIR_ENV])
    assert second != folder
    assert not folder.exists()
    handler.shutdown()
    assert not second.exists()
    assert names.PROGRESS_DIR_ENV not in os.environ


def test_a_user_may_switch_faulthandler_off(
    handler: K8sRendezvousHandler, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "")
    join(handler, leases)
    assert os.environ["PYTHONFAULTHANDLER"] == ""


STUCK = """
import sys, threading
lock = threading.Lock()
def waits_for_ever():
    lock.acquire()
    sys.stdout.write("here\\n")
    sys.stdout.flush()
    lock.acquire()  # in C, no signal handler of Python's can run
waits_for_ever()
"""


@contextmanager
def stuck(log: Path, agent: ListedAgent) -> Iterator[subprocess.Popen[str]]:
    """A worker as torch's agent starts it, which hangs."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "RANK": "0", "LOCAL_RANK": "0"},
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        agent.start(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_stacks_are_in_the_log_before_torch_ends_the_workers(
    handler: K8sRendezvousHandler, leases: Leases, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = join(handler, leases, agent=(agent := ListedAgent()))
    with stuck(tmp_path / "log", agent) as process:
        leases.publish(broken(record, "Hang"))
        wait_for(handler.num_nodes_waiting, 60, "the end is seen", interval=0.01)
        # When it is known to torch it is done.
        text = (tmp_path / "log").read_text()
        assert "Fatal Python error: Aborted" in text
        assert "waits_for_ever" in text
        assert process.wait(60) == -6
        where = f"(local rank 0, pid {process.pid}) is in {tmp_path / 'log'}"
        assert f"round 1 hung; the stack of rank 2 {where}" in caplog.text
        assert list(tmp_path.iterdir()) == [tmp_path / "log"], "and no core file"
    again = Joining(handler, agent)
    leases.announced("a", but=record.member_ids[0])
    assert leases.failure("a") is None, "what we have ended is no failure"
    form(leases, 2, "a")
    again.result()


def test_another_cause_leaves_the_workers_to_torch(
    handler: K8sRendezvousHandler, leases: Leases, tmp_path: Path
) -> None:
    record = join(handler, leases, agent=(agent := ListedAgent()))
    with stuck(tmp_path / "log", agent) as process:
        leases.publish(broken(record, "PodLost"))
        wait_for(handler.num_nodes_waiting, 60, "the end is seen", interval=0.01)
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == -15
        assert (tmp_path / "log").read_text() == ""


def test_an_agent_that_torch_does_not_ask_dumps_by_itself(
    handler: K8sRendezvousHandler, leases: Leases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long --monitor-interval: the workers are not left stopped."""
    monkeypatch.setattr("elasticjob.workers.terminator.DUMP_SECONDS", 0.1)
    record = join(handler, leases, agent=(agent := ListedAgent()))
    with stuck(tmp_path / "log", agent) as process:
        leases.publish(broken(record, "Hang"))
        assert process.wait(60) == -6
        assert "waits_for_ever" in (tmp_path / "log").read_text()
        assert handler.num_nodes_waiting() == 1


def test_only_the_round_that_hung_is_ended(
    handler: K8sRendezvousHandler, leases: Leases, tmp_path: Path
) -> None:
    """A late look at the record must not touch the workers of the next round."""
    record = join(handler, leases, agent=(agent := ListedAgent()))
    leases.publish(broken(record, "Hang"))
    wait_for(handler.num_nodes_waiting, 60, "the end is seen", interval=0.01)
    again = Joining(handler, agent)
    leases.announced("a", but=record.member_ids[0])
    second = form(leases, 2, "a")
    again.result()
    with stuck(tmp_path / "log", agent) as process:
        handler._observed(replace(broken(record, "Hang"), message="again"))
        assert handler.num_nodes_waiting() == 0
        assert process.poll() is None
        assert second.number == 2
