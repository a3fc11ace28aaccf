"""Why workers failed: real processes, and torch's real agent around them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError

from elasticjob.contract.reports import MAX_MESSAGE, FailureReport
from elasticjob.workers import failures
from elasticjob.workers.exits import WorkerExit, WorkerExitWatcher
from elasticjob.workers.failures import RoundWorkers, describe, first_noticed, oom_kills
from elasticjob.workers.torch_agent import AgentCall, FailedWorker, calling_agent, final_failures

DEADLINE = 60.0
pytestmark = pytest.mark.timeout(DEADLINE)  # an agent that does not come back hangs in the main thread


# -- the ends of processes ---------------------------------------------------------------------------------


@pytest.fixture
def shell() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Runs a line of bash; what it was is gone when the test is over."""
    running: list[subprocess.Popen[bytes]] = []

    def run(line: str) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(["bash", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


def test_of_those_that_have_ended_before_a_look_the_stopped_one_was_not_the_first(
    shell: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    """On a busy machine both are dead when the thread gets to look; torch stopped the one for the other."""
    stopped, first = shell("kill -TERM $$"), shell("exit 6")
    for process in (stopped, first):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ends = WorkerExitWatcher(lambda: {0: stopped.pid, 1: first.pid})
    ends.start()
    assert [(end.local_rank, end.exit_code) for end in ends.exits(DEADLINE)] == [(1, 6), (0, -signal.SIGTERM)]


def forbid_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, f"no pidfd of {pid} here")

    monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.parametrize("pidfds", [True, False], ids=["pidfd", "no pidfd"])
def test_ends_in_their_order_with_their_status(
    shell: Callable[[str], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, pidfds: bool
) -> None:
    if not pidfds:
        forbid_pidfds(monkeypatch)
    lines = ["read; exit 3", "read; kill -9 $$", "read; kill -SEGV $$", "read; exit 0"]
    processes = [shell(line) for line in lines]
    ends = WorkerExitWatcher(lambda: {rank: process.pid for rank, process in enumerate(processes)})
    ends.start()
    before = time.monotonic()
    for count, rank in enumerate((2, 0, 3, 1)):
        stdin = processes[rank].stdin
        assert stdin is not None
        stdin.write(b"\n")
        stdin.flush()
        while len(ends.exits(0.05)) <= count:
            assert time.monotonic() - before < DEADLINE
    found = ends.exits(DEADLINE)
    assert [(end.local_rank, end.exit_code) for end in found] == [(2, -11), (0, 3), (3, 0), (1, -9)]
    assert before < found[0].at < found[1].at < found[2].at < found[3].at <= time.monotonic()
    assert [p.wait(DEADLINE) for p in processes] == [3, -9, -11, 0], "every status is left for torch"


def test_a_status_that_was_taken_before(shell: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """Its end is seen, its status is torch's to tell."""
    process = shell("exit 3")
    process.wait(DEADLINE)
    ends = WorkerExitWatcher(lambda: {0: process.pid})
    ends.start()
    ends._thread.join(DEADLINE)
    assert [(end.local_rank, end.exit_code) for end in ends.exits(0)] == [(0, None)]


@pytest.mark.parametrize("pidfds", [True, False], ids=["pidfd", "no pidfd"])
def test_a_process_of_another_parent(
    shell: Callable[[str], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, pidfds: bool
) -> None:
    """Workers of a forkserver: their moments at most; nothing is made up."""
    if not pidfds:
        forbid_pidfds(monkeypatch)
    parent = shell("exec 3<&0; (read <&3; exit 3) & echo $!; wait")
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    ends = WorkerExitWatcher(lambda: {0: pid})
    ends.start()
    parent.stdin.write(b"\n")
    parent.stdin.flush()
    parent.wait(DEADLINE)
    ends._thread.join(DEADLINE)
    assert [end.exit_code for end in ends.exits(0)] == [None] * pidfds


def test_the_thread_ends_when_it_is_told(shell: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """Also while the workers are not there yet, and while they run."""
    process = shell("read")
    for find in (lambda: None, lambda: {0: process.pid}):
        ends = WorkerExitWatcher(find)
        ends.start()
        ends.stop()
        ends._thread.join(DEADLINE)
        assert not ends._thread.is_alive()
        assert ends.exits(0) == []


# -- torch's agent -----------------------------------------------------------------------------------------


class OneAgent(RendezvousHandler):
    """One agent's first round; its second ``next_rendezvous`` keeps the report and ends the agent."""

    def __init__(self, blind: bool = False) -> None:
        self.workers: RoundWorkers | None = None
        self.report: FailureReport | None = None
        self.call = AgentCall()
        self.over = threading.Event()
        self._blind = blind

    use_agent_store = True

    def next_rendezvous(self) -> RendezvousInfo:
        self.call = calling_agent(sys._getframe(1))
        if self.workers is not None:
            self.report = self.workers.failure(1, 0, self.call.failures)
            raise RendezvousGracefulExitError("seen enough")
        self.workers = RoundWorkers(None if self._blind else self.call.agent)
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("localhost", 29500))

    def num_nodes_waiting(self) -> int:
        if not self.over.is_set():
            return 0
        assert self.workers is not None
        self.workers.round_ended()
        self.workers.mark_stopping()
        return 1

    def get_backend(self) -> str:
        return "one"

    def get_run_id(self) -> str:
        return "run"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


def run_agent(
    handler: OneAgent,
    folder: Path,
    entrypoint: Any,
    *args: str,
    nproc: int = 1,
    start: str = "spawn",
    specs: DefaultLogsSpecs | None = None,
) -> None:
    """Run the agent until it comes back to the handler; in the main thread, which torch 2.4 needs."""
    spec = WorkerSpec(
        "default", nproc, handler, entrypoint=entrypoint, args=args, max_restarts=3, monitor_interval=0.1
    )
    agent = LocalElasticAgent(spec, specs or DefaultLogsSpecs(log_dir=str(folder)), start_method=start)
    taken_over = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in taken_over}
    try:
        agent.run()
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def script(folder: Path, line: str) -> str:
    """The line as a file: in arguments torch replaces what follows a dollar."""
    path = folder / "worker.sh"
    path.write_text(line)
    return str(path)


def failure_of(folder: Path, line: str, nproc: int = 1, blind: bool = False) -> FailureReport:
    handler = OneAgent(blind)
    run_agent(handler, folder, "bash", script(folder, line), nproc=nproc)
    assert handler.report is not None
    return handler.report


ERROR_FILE = """echo '{"message": {"message": "ValueError: bad input 7", "extraInfo":
{"py_callstack": "Traceback", "timestamp": "1700000000"}}}' > $TORCHELASTIC_ERROR_FILE; """


@pytest.mark.parametrize("blind", [False, True], ids=["watched", "torch alone"])
@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("exit 42", 42, "exit code 42; see its log (for the exception's text here, decorate the main"),
        ("exit 1", 1, "exit code 1; see its log (for the exception's text here, decorate the main"),
        (ERROR_FILE + "exit 1", 1, "ValueError: bad input 7"),
        (ERROR_FILE + "exit 42", 42, "exit code 42: ValueError: bad input 7"),
        (ERROR_FILE + "kill -ABRT $$", -6, "killed by SIGABRT: ValueError: bad input 7"),
        ("kill -9 $$", -9, "killed by SIGKILL"),
        ("kill -SEGV $$", -11, "killed by SIGSEGV"),
        ("kill -TERM $$", -15, "killed by SIGTERM"),
        ("bash -c 'kill -9 $$'; exit $?", 137, "exit code 137 (SIGKILL, as reported by a shell)"),
    ],
)
def test_one_worker(tmp_path: Path, line: str, code: int, message: str, blind: bool) -> None:
    report = failure_of(tmp_path, line, blind=blind)
    assert (report.exit_code, report.local_rank, report.after_round_end) == (code, 0, False)
    assert report.message.startswith(message)
    if blind:
        assert report.offset_milliseconds is None
    else:
        assert report.offset_milliseconds is not None
        assert 0 <= report.offset_milliseconds < DEADLINE * 1000


@pytest.mark.parametrize(("redirects", "file"), [(Std.ALL, "stderr.log"), (Std.OUT, "stdout.log")])
def test_where_the_output_is_when_it_is_not_in_the_pods_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, redirects: Std, file: str
) -> None:
    """--redirects 3 --log-dir FOLDER: torch removes the files of the round before. An error that is in the
    pod's log, as with --redirects 1, is read there."""
    caplog.set_level("INFO", "elasticjob")
    handler = OneAgent()
    line = f"until grep -q {tmp_path} {tmp_path}/said 2>/dev/null; do sleep 0.05; done; exit 3"
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=redirects)

    def say() -> None:
        while "goes into files" not in caplog.text:
            time.sleep(0.02)
        (tmp_path / "said").write_text(caplog.text)

    threading.Thread(target=say, daemon=True).start()
    run_agent(handler, tmp_path, "bash", script(tmp_path, line), specs=specs)
    (path,) = (tmp_path / "logs").glob(f"*/attempt_0/0/{file}")
    assert handler.report is not None
    where = f"; its output is in {path} of the pod" if redirects is Std.ALL else ""
    assert handler.report.message.startswith(f"exit code 3{where}; see its log")
    assert f"the workers' output goes into files, such as {path}." in caplog.text


@pytest.mark.parametrize("ends", ["exit 7", "kill -9 $$", "kill -TERM $$"])
def test_the_first_of_several_workers_counts(tmp_path: Path, ends: str) -> None:
    """Not those that torch stops for it, whatever they make of that; nor one that has finished well."""
    line = f"""
    case $LOCAL_RANK in
    0) trap 'exit 5' TERM; touch {tmp_path}/ready; while :; do sleep 0.1; done;;
    1) exit 0;;
    2) until [ -e {tmp_path}/ready ]; do sleep 0.1; done; {ends};;
    esac"""
    report = failure_of(tmp_path, line, nproc=3)
    assert report.local_rank == 2
    assert report.exit_code == {"exit 7": 7, "kill -9 $$": -9, "kill -TERM $$": -15}[ends]


def test_the_first_is_known_to_the_millisecond(tmp_path: Path) -> None:
    """Two workers that die within one look of torch's, which only sees them in the order of their ranks."""
    os.mkfifo(tmp_path / "end-of-1")
    line = f"""case $LOCAL_RANK in
    0) cat {tmp_path}/end-of-1; sleep 0.06; exit 5;;
    1) exec 3>{tmp_path}/end-of-1; exit 6;;
    esac"""
    report = failure_of(tmp_path, line, nproc=2)
    assert (report.local_rank, report.exit_code) == (1, 6)


def test_workers_that_torch_stops_have_not_failed(tmp_path: Path) -> None:
    handler = OneAgent()
    handler.over.set()
    line = "trap 'exit 5' TERM; while :; do sleep 0.1; done"
    run_agent(handler, tmp_path, "bash", script(tmp_path, line), nproc=2)
    assert handler.call.agent is not None
    assert handler.report is None


def raise_it() -> None:
    """A worker that is a function."""
    raise ValueError("bad input 7")


def leave_quickly() -> None:
    """A worker that is a function and says nothing."""
    os._exit(3)


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("function", "code", "message"),
    [(raise_it, 1, "ValueError: bad input 7"), (leave_quickly, 3, "exit code 3; see its log")],
)
def test_workers_that_are_functions(
    tmp_path: Path, start: str, function: Callable[[], None], code: int, message: str
) -> None:
    handler = OneAgent()
    run_agent(handler, tmp_path, function, start=start)
    report = handler.report
    assert report is not None
    assert (report.exit_code, report.local_rank) == (code, 0)
    assert report.message.startswith(message)
    assert report.offset_milliseconds is not None


def test_without_an_agent_on_the_stack() -> None:
    assert calling_agent(sys._getframe()) == AgentCall()
    assert calling_agent(None) == AgentCall()


def test_an_agent_that_gives_up() -> None:
    failure = ProcessFailure(1, 4711, -9, "/nowhere/error.json")
    assert final_failures(ChildFailedError("train.py", {3: failure})) == (
        FailedWorker(1, 4711, -9, "", failure.timestamp),
    )
    assert final_failures(None) == final_failures(SignalException("", signal.SIGTERM)) == ()


# -- putting the witnesses together ------------------------------------------------------------------------


def test_late_is_what_ended_after_the_record_had_said_that_the_round_was_over(tmp_path: Path) -> None:
    """Not what torch noticed after it."""
    early, late = OneAgent(), OneAgent()
    run_agent(early, tmp_path / "early", "bash", "-c", "exit 3")
    assert early.workers is not None
    assert early.report is not None
    early.workers.round_ended()
    again = early.workers.failure(1, 0, early.call.failures)
    assert again is not None
    assert not again.after_round_end

    real = late.next_rendezvous

    def over_at_once() -> RendezvousInfo:
        info = real()
        assert late.workers is not None
        late.workers.round_ended()
        return info

    late.next_rendezvous = over_at_once  # type: ignore[method-assign]
    run_agent(late, tmp_path / "late", "bash", "-c", "exit 3")
    assert late.report is not None
    assert (late.report.exit_code, late.report.after_round_end) == (3, True)


def test_nothing_is_known() -> None:
    assert RoundWorkers(None).failure(4, 2, ()) == FailureReport(4, 2, "exit code unknown")


def test_an_end_whose_status_torch_took_was_a_good_one_if_torch_goes_on() -> None:
    """One that failed keeps torch from asking on, although it may be busy for long with ending the others."""
    workers = RoundWorkers(None)
    workers.mark_healthy()
    workers._exits = WorkerExitWatcher(dict)
    workers._exits._exits = [WorkerExit(1, 11, time.monotonic(), None)]
    found = []
    for _ in range(3):
        found.append(workers.has_ended_well(1))
        workers.mark_healthy()
    assert found == [False, False, True], "torch has looked since"
    assert not any(workers.has_ended_well(rank) for rank in (0, None))


def test_a_witness_that_breaks_down_leaves_the_failure_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(failures: Sequence[FailedWorker]) -> FailedWorker | None:
        raise TypeError(f"another torch: {failures}")

    monkeypatch.setattr(failures, "first_noticed", broken)
    workers = RoundWorkers(None)
    workers.round_ended()
    assert workers.failure(4, 2, ()) == FailureReport(4, 2, "exit code unknown", after_round_end=True)


def test_a_signal_is_never_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(failures: Sequence[FailedWorker]) -> FailedWorker | None:
        raise SignalException(f"{failures}", signal.SIGTERM)

    monkeypatch.setattr(failures, "first_noticed", terminated)
    with pytest.raises(SignalException):
        RoundWorkers(None).failure(4, 2, ())


def test_torch_alone_names_no_worker_that_it_has_stopped_itself() -> None:
    stopped, failed = FailedWorker(0, 11, -15, "", 100), FailedWorker(1, 12, 7, "", 100)
    assert first_noticed([stopped, failed]) == failed
    assert first_noticed([stopped]) == stopped
    assert first_noticed([]) is None


def test_a_text_that_the_record_can_carry() -> None:
    """An exception's text may be anything: of any length, and no Unicode."""
    message = describe(1, "\ud800" + "ä" * 5000)
    assert len(message) == MAX_MESSAGE
    assert message.startswith("?ä")
    assert FailureReport.parse(FailureReport(1, 0, message).dump()).message == message


def test_out_of_memory_is_named_where_the_kernel_counts_it(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(tmp_path) == 2
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path) == 3
    assert describe(-9, "", 1).startswith("killed by SIGKILL: out of memory")
    assert describe(-9, "") == "killed by SIGKILL"
    assert "memory" not in describe(-11, "", 1)


def test_signals_without_a_name() -> None:
    assert describe(-40, "") == "killed by signal 40"
    assert describe(255, "").startswith("exit code 255; see its log")
