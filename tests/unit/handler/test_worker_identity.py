"""Which processes are an agent's workers, and what becomes of all others: torch's own agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.agent.server import WorkerSpec

from devcluster.wait import wait_for
from elasticjob.contract import names
from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import DrainReport, ProgressReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.workers import exits
from elasticjob.workers.exits import exit_status
from tests.unit.handler.joining import Start
from tests.unit.handler.real_agent import Rounds, run_agent
from tests.unit.memory_api import Leases

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux knows whose children processes are"),
    pytest.mark.timeout(120),
]

SECONDS = 60.0
HALF_A_LETTER = "import ctypes; ctypes.CDLL(None).prctl(15, ('é' * 8).encode(), 0, 0, 0)\n"
"""As setproctitle does it: the kernel cuts the name after 15 bytes, in the middle of a letter."""
PROLOGUE = """
import faulthandler, os, signal, subprocess, sys, time
from pathlib import Path
folder, rank, number = Path(sys.argv[1]), os.environ["RANK"], os.environ["ELASTICJOB_ROUND"]

faulthandler.enable()

def say(what, text=""):
    part = folder / f".{what}-{rank}-{number}"
    part.write_text(str(text))
    part.rename(folder / f"{what}-{rank}-{number}")

def wait_for_ever():
    while True:
        time.sleep(600)

def started(*code, **options):
    # A child that says that it is there.
    command = [sys.executable, "-u", "-c", "\\n".join([*code, "print()", "import time; time.sleep(600)"])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
    child.stdout.readline()
    return child.pid
"""


class Agent:
    """torch's agent of the pod ``a``, its rounds, what its workers say, and processes beside them."""

    def __init__(self, start: Start, leases: Leases, folder: Path) -> None:
        self.leases, self.folder, self.rounds = leases, folder, Rounds(leases)
        self.others: list[subprocess.Popen[bytes]] = []
        self._start = start

    def run(
        self,
        script: str,
        operator: Callable[[], None],
        nproc: int = 1,
        flags: Mapping[str, bool] | None = None,
        **settings: Any,
    ) -> None:
        """Run it with workers of this script, and ``operator`` in another thread."""
        handler = self._start("a", **settings)
        run_agent(handler, self.folder, PROLOGUE + script, operator, nproc, **(flags or {}))

    def said(self, what: str, rank: int = 0, number: int = 1) -> str:
        """What a worker has said, as soon as it has."""
        path = self.folder / f"{what}-{rank}-{number}"
        wait_for(path.exists, SECONDS, f"{path.name} is there")
        return path.read_text()

    def hang(self) -> None:
        """The operator ends the first round as hung, and then the job."""
        self.rounds.next()
        self.said("here")
        self.rounds.end("Hang")
        self.rounds.complete()

    def drain(self) -> DrainReport | None:
        """What the leader says of the drain."""
        text = self.leases.annotation("a", names.DRAIN_ANNOTATION)
        return None if text is None else DrainReport.parse(text)

    def drained(self, record: RoundRecord) -> DrainReport:
        """Drain this round, and wait until all have stopped."""
        self.leases.publish(replace(record, phase="Draining"))
        self.leases.wait_for(lambda: (found := self.drain()) and found.stopped, "all have stopped")
        found = self.drain()
        assert found is not None
        return found

    def beside(self, code: str = "") -> subprocess.Popen[bytes]:
        """A child of torchrun's process that is no worker, as ``setsid uploader & exec torchrun`` leaves it
        there. It dumps its stack at SIGABRT."""
        self.others.append(
            subprocess.Popen(
                [sys.executable, "-u", "-c", f"{code}\nprint()\nimport time; time.sleep(600)"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        )
        output = self.others[-1].stdout
        assert output is not None
        output.readline()
        return self.others[-1]


@pytest.fixture
def agent(start: Start, leases: Leases, tmp_path: Path) -> Iterator[Agent]:
    made = Agent(start, leases, tmp_path)
    yield made
    for process in made.others:
        process.kill()
        process.communicate()


def test_a_process_name_that_ends_in_half_a_letter_ends_nothing(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.beside(HALF_A_LETTER)

    def operator() -> None:
        agent.rounds.next()
        agent.said("here")
        agent.rounds.end("Hang")
        agent.rounds.next()
        agent.said("here", number=2)
        agent.rounds.end()
        agent.rounds.complete()

    agent.run(HALF_A_LETTER + "say('here')\nwait_for_ever()", operator)
    assert "round 1 hung; the stack of rank 0 (local rank 0, pid" in caplog.text


def test_the_timer_that_ends_slow_workers_survives_such_a_name(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    uploader = agent.beside(HALF_A_LETTER)
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('here', os.getpid())\nwait_for_ever()"

    def operator() -> None:
        agent.rounds.next()
        pids = [agent.said("here", rank) for rank in range(2)]
        agent.rounds.end()
        wait_for(lambda: "its workers did not stop" in caplog.text, SECONDS, "they are killed")
        text = f"killed rank 0 (pid {pids[0]}), rank 1 (pid {pids[1]})"
        assert text in caplog.text
        agent.rounds.complete()

    agent.run(HALF_A_LETTER + script, operator, nproc=2, worker_stop=0.5)
    assert uploader.poll() is None, "it is no worker"


def test_what_is_no_worker_neither_dumps_its_stack_nor_ends(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    uploader = agent.beside()
    agent.run("say('here')\nwait_for_ever()", agent.hang)
    assert caplog.text.count("hung; the stack of") == 1
    assert f"pid {uploader.pid}" not in caplog.text
    assert uploader.poll() is None


VIRTUAL = "virtual_local_rank"
"""torchrun's --virtual-local-rank, as its agent gets it."""
BY_TORCHRUN = pytest.mark.skipif(
    VIRTUAL not in {one.name for one in fields(WorkerSpec)}, reason="torchrun has no --virtual-local-rank"
)
STEPS_WITH_RANK_0 = """
from elasticjob import should_stop, stop_here
assert os.environ["LOCAL_RANK"] == "0"
step = 0
while True:
    step += 1
    if should_stop(step):
        say("stopped", step)
        stop_here()
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("flags", "script"),
    [
        pytest.param({VIRTUAL: True}, STEPS_WITH_RANK_0, id="by torchrun", marks=BY_TORCHRUN),
        pytest.param({}, f"os.environ['LOCAL_RANK'] = '0'\n{STEPS_WITH_RANK_0}", id="by the script"),
    ],
)
def test_workers_that_all_call_themselves_local_rank_0_stop_at_one_step(
    agent: Agent, flags: dict[str, bool], script: str
) -> None:
    """--virtual-local-rank of torchrun, and scripts that set CUDA_VISIBLE_DEVICES."""

    def operator() -> None:
        record = agent.rounds.next()
        agent.leases.wait_for(agent.drain, "both workers take part")
        step = agent.drained(record).step
        assert [agent.said("stopped", rank) for rank in range(2)] == [str(step)] * 2
        agent.rounds.end()
        agent.rounds.complete()

    agent.run(script, operator, nproc=2, flags=flags)


FEWER_BATCHES = """
from elasticjob import should_stop, stop_here
step = 0
while not (rank == "0" and step and (folder / "part").exists()):
    step += 1
    if should_stop(step):
        stop_here()
    time.sleep(0.01)
"""


def test_a_worker_that_has_ended_is_not_waited_for_where_torch_took_its_status_first(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine torch looks before the thread that watches for ends."""
    seen = threading.Event()

    def late(kind: int, number: int) -> int | exits.ExitStatus:
        while (found := exit_status(kind, number)) is not exits.ExitStatus.UNKNOWN:
            time.sleep(0.01)
        seen.set()
        return found

    monkeypatch.setattr(exits, "exit_status", late)

    def operator() -> None:
        record = agent.rounds.next()
        agent.leases.wait_for(agent.drain, "both workers take part")
        (agent.folder / "part").touch()
        assert seen.wait(SECONDS)
        agent.drained(record)
        agent.rounds.end()
        agent.rounds.complete()

    agent.run(FEWER_BATCHES, operator, nproc=2)


ASKED = """
import elasticjob
os.environ["LOCAL_RANK"] = "0"
elasticjob.report_progress(1)
say("here", os.getpid())
wait_for_ever()
"""


def test_stacks_have_the_ranks_that_the_agent_gave(agent: Agent) -> None:
    def operator() -> None:
        agent.rounds.next()
        pids = [int(agent.said("here", rank)) for rank in range(2)]
        asked = subprocess.run([sys.executable, "-m", "elasticjob.stacks"], capture_output=True, check=True)
        found = [json.loads(line) for line in asked.stdout.splitlines()]
        told = {one["pid"]: (one["rank"], one["localRank"]) for one in found if one["pid"] in pids}
        assert told == {pids[0]: (0, 0), pids[1]: (1, 1)}
        agent.rounds.end()
        agent.rounds.complete()

    early = "os.environ['LOCAL_RANK'] = '0'\nos.environ['RANK'] = '0'\n"
    agent.run(early + ASKED, operator, nproc=2)


HANG_SECONDS = 15
"""Longer than an interpreter takes to start on a slow machine."""
FOLDS = f"""
code = '''
import sys, time
from elasticjob import report_progress
for step in range(int(sys.argv[1])):
    report_progress(step)
    time.sleep(0.1)
'''
for fold, steps in enumerate([5, 5, {HANG_SECONDS * 10 + 20}]):
    subprocess.run([sys.executable, "-c", code, str(steps)], check=True)
    say(f"fold{{fold}}")
    if fold == 1:
        child = os.fork()
        if child == 0:
            sys.argv[1:] = ["5"]
            exec(code)
            os._exit(0)
        os.waitpid(child, 0)
        say("forked")
"""


def test_a_worker_that_trains_each_fold_in_a_child_does_not_hang(agent: Agent) -> None:
    def operator() -> None:
        agent.rounds.next(limits=Limits(hang_timeout=HANG_SECONDS))
        agent.said("fold2")
        report = agent.leases.report("a")
        assert report is not None
        assert not report.hung
        text = agent.leases.annotation("a", names.PROGRESS_ANNOTATION)
        assert text is not None
        assert ProgressReport.parse(text).first_step == 0
        agent.said("forked")
        agent.rounds.end()
        agent.rounds.complete()

    agent.run(FOLDS + "wait_for_ever()", operator)


LEAVES = """
def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False

if number == "1":
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    pids = [
        started(),
        started(ignores),
        started(start_new_session=True),
        started("import os; os.setpgid(0, 0)"),
        started(ignores, start_new_session=True),
    ]
    say("left", " ".join(map(str, pids)))
    time.sleep(0.2)
    {end}
before = (folder / "left-0-1").read_text().split()
say("alive", [pid for pid in before if alive(pid)])
wait_for_ever()
"""


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "wait_for_ever()"])
def test_what_a_worker_has_left_behind_ends_before_the_next_round(
    agent: Agent, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    uploader = agent.beside()

    def operator() -> None:
        agent.rounds.next()
        pids = agent.said("left").split()
        if "wait" in end:
            agent.rounds.end("Hang")
        agent.rounds.next()
        assert agent.said("alive", number=2) == "[]"
        wait_for(lambda: "round 1: its workers left" in caplog.text, SECONDS, "it is said")
        assert [pid for pid in pids if f"{pid} (python" not in caplog.text] == []
        agent.rounds.end()
        agent.rounds.complete()

    agent.run(LEAVES.replace("{end}", end), operator)
    assert uploader.poll() is None


def test_no_helper_lets_its_exception_out_of_num_nodes_waiting(
    agent: Agent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short of descriptors, say: the round ends, whatever becomes of the stacks."""

    def short(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("elasticjob.workers.stack_dump.StackDump.freeze", short)
    agent.run("say('here')\nwait_for_ever()", agent.hang)
    assert "the stacks of the workers are not written" in caplog.text
