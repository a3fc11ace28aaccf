"""torchrun's side of warm workers: when interpreters are made, how many, and which starts are theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler as torchs

from devcluster.wait import wait_for
from elasticjob.warm import workers
from elasticjob.warm import workers as warm_workers
from elasticjob.warm.eligibility import Starts
from elasticjob.warm.interpreter import WarmInterpreter
from elasticjob.warm.interpreter_count import MIB, Memory
from elasticjob.warm.workers import WarmWorkers
from elasticjob.workers import stack_dump
from elasticjob.workers.failures import RoundWorkers
from elasticjob.workers.stack_dump import StackDump
from elasticjob.workers.terminator import WorkerTerminator
from elasticjob.workers.torch_agent import AgentWorkers
from tests.unit.test_participant import ROUND, joined

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers are for Linux")

SECONDS = 120.0
PLENTY = Memory(1 << 40, 1 << 40)
ORIGINAL = torchs.SubprocessHandler._popen


class Agent:
    """What torch's agent tells of the workers that it will start."""

    def __init__(self, workers: int, *args: str) -> None:
        self._spec = SimpleNamespace(entrypoint=sys.executable, args=("-u", *args), local_world_size=workers)
        self._workers: list[SimpleNamespace] = []

    def get_worker_group(self) -> SimpleNamespace:
        return SimpleNamespace(spec=self._spec, workers=self._workers)

    def start(self, pids: Mapping[int, int]) -> None:
        """Workers with these pids, by local rank, are there."""
        self._workers = [
            SimpleNamespace(local_rank=rank, global_rank=rank + 4, id=pid) for rank, pid in pids.items()
        ]


class Scene:
    """Warm workers that import nothing much, and the starts of a torch that is played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory: Memory | None = PLENTY
        self.warm = WarmWorkers(memory=lambda: self.memory)
        self.warm.install()
        self.stepped = False
        self.told = Starts()
        self.processes: list[subprocess.Popen[bytes]] = []

    def script(self, text: str) -> str:
        (self.folder / "script.py").write_text(text)
        return "script.py"

    def arm(self, workers: int, *args: str) -> None:
        agent: Any = Agent(workers, *args)
        self.warm.arm(agent)

    def idle(self, number: int) -> frozenset[int]:
        """Wait until so many have done their imports."""

        def there() -> frozenset[int] | None:
            ready = [one for one in self.warm._idle.values() if not one.importing()]
            return self.warm.idle_pids() if len(ready) == len(self.warm._idle) == number else None

        return wait_for(there, SECONDS, f"{number} interpreters wait")

    def start(self, rank: int, *args: str, **env: str) -> subprocess.Popen[bytes]:
        """As torch starts a worker: an object with its output, then its ``_popen``."""
        handler = torchs.SubprocessHandler.__new__(torchs.SubprocessHandler)
        handler._stdout = (self.folder / f"out-{rank}").open("w")
        handler._stderr = (self.folder / f"err-{rank}").open("w")
        handler.local_rank_id = rank
        values = {**os.environ, "RANK": str(rank + 4), "LOCAL_RANK": str(rank), **env}
        self.processes.append(handler._popen((sys.executable, "-u", *args), values))
        handler._stdout.close()
        handler._stderr.close()
        return self.processes[-1]

    def out(self, rank: int) -> str:
        return (self.folder / f"out-{rank}").read_text()

    def begin(self) -> None:
        self.warm.begin(lambda: self.stepped, self._tell)

    def _tell(self, starts: Starts) -> None:
        self.told = starts


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warm_workers, "imports", lambda _text, more: ("fractions", *more))
    made = Scene(tmp_path)
    yield made
    made.warm.close()
    for one in made.processes:
        one.kill()
        one.wait()
    assert torchs.SubprocessHandler._popen is ORIGINAL


PRINTS = "import os, sys; print(os.environ['RANK'], sys.argv)"
Logged = pytest.LogCaptureFixture


@pytest.fixture
def said(caplog: Logged) -> Callable[[], str]:
    caplog.set_level("INFO", "elasticjob")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


def test_each_worker_is_made_of_the_interpreter_of_its_rank(scene: Scene, said: Callable[[], str]) -> None:
    args = (scene.script(PRINTS), "--rank=${local_rank}")
    scene.arm(2, *args)
    pids = scene.idle(2)
    for rank in (1, 0):
        one = scene.start(rank, args[0], f"--rank={rank}")
        assert one.pid in pids
        assert one.wait(SECONDS) == 0
        assert scene.out(rank) == f"{rank + 4} ['script.py', '--rank={rank}']\n"
    assert scene.warm.counts == {"warm": 2}
    assert "worker 0 starts warm" in said()


def test_the_next_are_made_after_the_first_step_one_by_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (scene.script("import time; time.sleep(600)"),)
    beside: list[int] = []

    def make(*given: Any) -> WarmInterpreter:
        beside.append(sum(one.importing() for one in scene.warm._idle.values()))
        return WarmInterpreter(*given)

    monkeypatch.setattr(warm_workers, "WarmInterpreter", make)
    scene.begin()
    first = [scene.start(rank, *args) for rank in range(3)]
    assert scene.warm.counts == {"cold": 3}
    assert scene.told == Starts(0, 3, "no warm interpreter was ready")
    assert scene.warm.idle_pids() == frozenset()
    scene.stepped = True
    pids = scene.idle(3)
    assert not pids & {one.pid for one in first}
    assert beside == [0, 0, 0], "each when the one before had done its imports"
    scene.arm(3, *args)
    scene.begin()
    assert {scene.start(rank, *args).pid for rank in range(3)} == pids
    assert scene.told == Starts(3), "each round's own"


def test_the_next_are_made_after_a_while_where_no_step_is_reported(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (scene.script("import time; time.sleep(600)"),)
    scene.begin()
    scene.start(0, *args)
    due = scene.warm._due - time.monotonic()
    assert 0.9 * workers.AGAIN_SECONDS < due <= workers.AGAIN_SECONDS == 30.0
    monkeypatch.setattr(warm_workers, "AGAIN_SECONDS", 0.3)
    scene.begin()
    scene.start(1, *args)
    assert not scene.stepped
    scene.idle(2)


def test_a_guard_that_kills_what_is_left_of_the_workers_leaves_those_that_wait_alone(
    scene: Scene, said: Callable[[], str]
) -> None:
    args = (scene.script("import time; print('here', flush=True); time.sleep(600)"),)
    scene.arm(2, *args)
    scene.idle(2)
    worker = scene.start(1, *args)
    wait_for(lambda: scene.out(1) == "here\n", SECONDS, "the worker runs")
    (waits,) = scene.warm.idle_pids()
    agent: Any = Agent(2)
    core, left = joined(ROUND), RoundWorkers(agent)
    core.take_action()
    agent.start({1: worker.pid})
    guard = WorkerTerminator(core, 0.1, lambda: left)
    guard.kill_in_time()
    assert worker.wait(SECONDS) == -9
    wait_for(lambda: "its workers did not stop" in said(), SECONDS, "it says whom it has killed")
    assert f"killed rank 5 (pid {worker.pid})" in said()
    left.close()
    assert scene.idle(1) == {waits}


def test_a_warm_worker_tells_its_stack_with_its_own_rank(scene: Scene) -> None:
    """Its environment, as the kernel knows it, has no rank; and those that wait are no workers."""
    args = (
        scene.script(
            "import time, elasticjob\nprint('here', flush=True)\ndef waits(): time.sleep(600)\nwaits()"
        ),
    )
    scene.arm(2, *args)
    idle = scene.idle(2)
    worker = scene.start(1, *args, RANK="70010", ELASTICJOB_PROGRESS_DIR=str(scene.folder))
    wait_for(lambda: scene.out(1) == "here\n", SECONDS, "the worker runs")
    asked = subprocess.run([sys.executable, "-m", "elasticjob.stacks"], capture_output=True, check=True)
    found = [json.loads(line) for line in asked.stdout.splitlines()]
    assert [one["pid"] for one in found if one["pid"] in idle] == [worker.pid]
    (told,) = (one for one in found if one["pid"] == worker.pid)
    assert (told["rank"], told["localRank"]) == (70010, 1)
    assert "in waits" in told["stack"]
    assert worker.poll() is None


def test_whether_the_next_start_is_prepared(scene: Scene) -> None:
    args = (scene.script("import time; time.sleep(600)"),)
    told: list[Starts] = []
    scene.arm(2, *args)
    scene.idle(2)
    assert scene.warm.prepared()
    scene.warm.begin(lambda: scene.stepped, told.append, leads=True)
    assert told == [Starts(preparing=True)], "the leader says so before its workers start"
    for rank in range(2):
        scene.start(rank, *args)
    assert told[-1] == Starts(2, preparing=True)
    assert not scene.warm.prepared(), "they were used, and the next are made after the first step"
    scene.stepped = True
    wait_for(scene.warm.prepared, SECONDS, "the next are ready")
    scene.idle(2)
    scene.warm.all_prepared()
    assert told[-1] == Starts(2)
    scene.begin()
    assert scene.told == Starts(), "who does not lead says nothing"
    scene.warm._give_up("why")
    assert scene.warm.prepared(), "there is nothing to wait for"


def test_another_environment_is_a_cold_start(scene: Scene, said: Callable[[], str]) -> None:
    args = (scene.script(PRINTS),)
    scene.arm(1, *args)
    pids = scene.idle(1)
    one = scene.start(0, *args, PYTHONHASHSEED="1")
    assert one.wait(SECONDS) == 0
    assert one.pid not in pids
    assert "worker 0 starts cold: its environment is another: PYTHONHASHSEED" in said()
    assert scene.warm.counts == {"cold": 1}


# shows: an interpreter that waits to become a warm worker dies, or cannot be used
def test_one_that_has_died_is_a_cold_start(scene: Scene, said: Callable[[], str]) -> None:
    args = (scene.script(PRINTS),)
    scene.arm(1, *args)
    (pid,) = scene.idle(1)
    os.kill(pid, 9)
    wait_for(lambda: not scene.warm.idle_pids(), SECONDS, "that is seen")
    assert scene.start(0, *args).wait(SECONDS) == 0
    assert scene.out(0) == "4 ['script.py']\n"
    assert "worker 0 starts cold: " in said()


def test_whatever_goes_wrong_here_is_a_cold_start(
    scene: Scene, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (scene.script(PRINTS),)
    scene.arm(1, *args)
    scene.idle(1)
    monkeypatch.setattr(warm_workers, "mismatch", lambda _made, _wanted: 1 / 0)
    assert scene.start(0, *args).wait(SECONDS) == 0
    assert scene.out(0) == "4 ['script.py']\n"
    assert "worker 0 starts cold: ZeroDivisionError" in said()


def test_a_module_that_cannot_be_imported_is_left_out(scene: Scene, said: Callable[[], str]) -> None:
    (scene.folder / "ends.py").write_text("import sys; sys.exit(0)")
    scene.warm._more = ("not_there", "json.not_there", "ends", "bisect")
    args = (scene.script(PRINTS),)
    scene.arm(2, *args)
    pids = scene.idle(2)
    wait_for(lambda: said().count("it is left out") == 3, SECONDS, "all three are left out")
    pids = scene.idle(2)
    assert (
        "cannot import not_there: ModuleNotFoundError: No module named 'not_there'; it is left out" in said()
    )
    assert "cannot import ends: SystemExit: 0; it is left out" in said()
    assert scene.start(0, *args).pid in pids
    assert scene.warm.counts == {"warm": 1}


def test_without_torch_there_are_none(
    scene: Scene, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_workers, "imports", lambda _text, _more: ("not_there",))
    args = (scene.script(PRINTS),)
    scene.arm(2, *args)
    wait_for(lambda: "no more warm workers" in said(), SECONDS, "it gives up")
    assert "no more warm workers: cannot import not_there: ModuleNotFoundError" in said()
    assert scene.warm.idle_pids() == frozenset()
    assert scene.start(0, *args).wait(SECONDS) == 0


def test_a_script_that_changes_the_environment_is_cold_and_ends_it(
    scene: Scene, said: Callable[[], str]
) -> None:
    (scene.folder / "early.py").write_text("")
    scene.warm._more = ("early",)
    args = (scene.script("import os; os.environ['OMP_PLACES'] = 'x'; import early; print('ran')"),)
    scene.arm(1, *args)
    scene.idle(1)
    scene.begin()
    assert scene.start(0, *args).wait(SECONDS) == 0
    assert scene.out(0) == "ran\n"
    scene.stepped = True
    wait_for(lambda: "no more warm workers" in said(), SECONDS, "it gives up")
    assert "worker 0 started cold after all: the script sets OMP_PLACES before it imports early" in said()
    assert +scene.warm.counts == {"cold": 1}
    assert scene.told == Starts(0, 1, "the script sets OMP_PLACES before it imports early")


def test_a_cold_start_says_why_there_are_no_warm_ones_at_all(scene: Scene) -> None:
    scene.arm(1, "-O", scene.script(PRINTS))
    wait_for(lambda: scene.warm.prepared() and not scene.warm.warming(), SECONDS, "it gives up")
    scene.begin()
    assert scene.start(0, "-O", "script.py").wait(SECONDS) == 0
    assert scene.told == Starts(0, 1, "its command has Python's option -O")


def test_as_many_as_memory_allows(scene: Scene, said: Callable[[], str]) -> None:
    scene.memory = Memory(10_000 * MIB, 1_900 * MIB)
    args = (scene.script(PRINTS),)
    scene.arm(4, *args)
    scene.idle(2)
    assert "2 of 4 workers can be warm: 1900 MiB of 10000 MiB are free" in said()


def test_they_are_given_back_when_memory_gets_short(scene: Scene, said: Callable[[], str]) -> None:
    scene.arm(2, scene.script(PRINTS))
    scene.idle(2)
    scene.memory = Memory(10_000 * MIB, 10 * MIB)
    wait_for(lambda: not scene.warm.idle_pids(), SECONDS, "they are given back")
    assert "memory is short: 10 MiB of 10000 MiB are free" in said()
    scene.memory = PLENTY
    scene.arm(2, "script.py")
    scene.idle(2)


@pytest.mark.parametrize(
    ("at_first", "later"),
    [
        (Memory(512 << 30, 5 << 30, 2 << 30), Memory(512 << 30, 300 << 30, 2 << 30)),
        (Memory(512 << 30, 1 << 30, 9 << 30), Memory(64 << 30, 55 << 30)),
    ],
    ids=["the node is full, then free", "the node has less to give, then the container"],
)
def test_what_other_containers_used_is_not_kept_free_for_training(
    scene: Scene, said: Callable[[], str], at_first: Memory, later: Memory
) -> None:
    scene.memory = at_first
    scene.arm(2, scene.script(PRINTS))
    text = f"0 of 2 workers can be warm: {at_first.available // MIB} MiB of 524288 MiB are free, each takes"
    wait_for(lambda: text in said(), SECONDS, "it says why there are none")
    wait_for(lambda: scene.warm._highest, SECONDS, "it has looked at memory")
    scene.memory = later
    scene.arm(2, "script.py")
    scene.idle(2)


@pytest.mark.parametrize("where", ["here", "in another pod"])
def test_after_a_container_was_out_of_memory_none_wait_and_why_is_said(
    scene: Scene, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    args = (scene.script(PRINTS),)
    scene.arm(2, *args)
    scene.idle(2)
    if where == "here":
        monkeypatch.setattr(warm_workers, "oom_kills", lambda: (scene.warm._oom_kills or 0) + 1)
        monkeypatch.setattr(scene.warm, "_oom_kills", 0)
        why = "a process of this container was killed because its memory was used up"
    else:
        for _ in range(2):
            scene.warm.out_of_memory("a container of this job")
        why = "a container of this job was out of memory"
    wait_for(lambda: not scene.warm.idle_pids(), SECONDS, "they are given back")
    scene.begin()
    assert scene.start(0, *args).wait(SECONDS) == 0
    assert scene.told == Starts(0, 1, why)
    assert said().count(f"no more warm workers: {why}") == 1


def test_a_torch_that_starts_workers_in_another_way_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    def other(self: object, args: object) -> None: ...

    monkeypatch.setattr(torchs.SubprocessHandler, "_popen", other)
    warm = WarmWorkers()
    warm.install()
    found: object = torchs.SubprocessHandler._popen
    assert found is other
    assert "in a way that is not known here" in said()
    warm.close()
    monkeypatch.delattr(torchs.SubprocessHandler, "_popen")
    warm = WarmWorkers()
    warm.install()
    warm.close()
    assert not hasattr(torchs.SubprocessHandler, "_popen")


def test_a_stack_dump_knows_warm_workers_and_leaves_those_that_wait_alone(
    scene: Scene, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "FREEZE_SECONDS", 0.0)
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    args = (scene.script("import time\nprint('here', flush=True)\ndef hangs(): time.sleep(600)\nhangs()"),)
    scene.arm(2, *args)
    scene.idle(2)
    worker = scene.start(1, *args)
    wait_for(lambda: scene.out(1) == "here\n", SECONDS, "the worker runs")
    (waits,) = scene.warm.idle_pids()
    agent: Any = Agent(2)
    listed = AgentWorkers(agent)
    agent.start({1: worker.pid})
    dump = StackDump()
    dump.freeze(3, listed() or (), lambda: True)
    assert Path(f"/proc/{waits}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    dump.dump()
    assert worker.wait(SECONDS) == -6
    assert f"round 3 hung; the stack of rank 5 (local rank 1, pid {worker.pid}) is in " in said()
    assert "in hangs" in (scene.folder / "err-1").read_text()
    assert scene.warm.idle_pids() == {waits}
