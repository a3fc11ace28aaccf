"""``report_progress`` in real worker processes, and what the agent reads of it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import elasticjob
from devcluster.wait import wait_for
from elasticjob.contract.names import PROGRESS_DIR_ENV
from elasticjob.core.progress import Steps
from elasticjob.watch.step_files import PREFIX, StepFiles, StepReader, read_file
from elasticjob.worker import progress
from elasticjob.worker.progress import LAYOUT, MAX_STEP, StepFile
from elasticjob.workers import processes
from elasticjob.workers.torch_agent import AgentWorker

Worker = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[StepFiles]:
    monkeypatch.setenv(PROGRESS_DIR_ENV, "")
    one = StepFiles()
    yield one
    one.remove()


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Start a worker with a local rank; it ends with its standard input."""
    started: list[subprocess.Popen[str]] = []

    def start(local_rank: int, body: str) -> subprocess.Popen[str]:
        script = "import os, sys\nfrom elasticjob import report_progress\n" + textwrap.dedent(body)
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", script],
                env={**os.environ, "LOCAL_RANK": str(local_rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def done(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output


def steps_of(reader: StepReader) -> tuple[int, int] | None:
    """(first, highest)."""
    found = reader.read()
    return None if found is None else (found.first_step, found.step)


def test_the_names_are_those_of_the_contract() -> None:
    assert progress.PROGRESS_DIR_ENV == PROGRESS_DIR_ENV
    assert elasticjob.report_progress is progress.report_progress


def test_the_package_stays_light() -> None:
    """Every program that imports torchrun imports it."""
    heavy = "{'torch', 'urllib3', 'json', 'logging', 'tempfile', 'threading', 'typing', 'dataclasses'}"
    script = f"import sys, elasticjob; print(sorted({heavy} & set(sys.modules)))"
    # -S: site-packages may have .pth files that import much
    package = str(Path(elasticjob.__file__).parent.parent)
    result = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"


def test_the_agent_sees_the_highest_step_of_its_workers(files: StepFiles, worker: Worker) -> None:
    reader = files.renew()
    assert reader.read() is None
    before = time.monotonic()
    done(worker(1, "for step in range(7, 11): report_progress(step)"))
    between = time.monotonic()
    assert steps_of(reader) == (7, 10)
    done(worker(0, "for step in (5, 12, 3, 11, -1): report_progress(step)"))
    found = reader.read()
    assert found is not None
    assert (found.first_step, found.step) == (7, 12), "a step that goes down is ignored"
    assert before < found.first_at < between < found.at < time.monotonic(), "one clock, worker and agent"


def test_every_round_has_a_new_folder(files: StepFiles, worker: Worker) -> None:
    first = files.renew()
    old = os.environ[PROGRESS_DIR_ENV]
    one = worker(0, "report_progress(9); print('here', flush=True); sys.stdin.read(); report_progress(99)")
    assert one.stdout is not None
    assert one.stdout.readline() == "here\n"
    assert steps_of(first) == (9, 9)
    second = files.renew()
    assert os.environ[PROGRESS_DIR_ENV] != old
    assert not Path(old).exists()
    done(one)
    assert second.read() is None, "a worker of the round before says nothing in this one"
    assert steps_of(first) == (9, 9), "what was read stays known"
    done(worker(0, "report_progress(2)"))
    assert steps_of(second) == (2, 2), "and may begin lower"
    files.remove()
    assert PROGRESS_DIR_ENV not in os.environ


def test_only_the_worker_itself_reports(files: StepFiles, worker: Worker) -> None:
    """Neither a process that it has forked, nor one that has inherited its environment."""
    reader = files.renew()
    reader.follow(lambda: started)
    started: list[AgentWorker] = []
    one = worker(
        0,
        """
            import subprocess
            sys.stdin.readline()
            report_progress(1)
            child = os.fork()
            if child == 0:
                report_progress(1000)
                os._exit(0)
            os.waitpid(child, 0)
            other = "from elasticjob import report_progress; report_progress(2000)"
            subprocess.run([sys.executable, "-c", other], check=True)
            report_progress(2)
            print("here", flush=True)
            sys.stdin.readline()
            """,
    )
    started.append(agent_worker(one))
    tell(one)
    assert one.stdout is not None
    assert one.stdout.readline() == "here\n"
    assert steps_of(reader) == (1, 2)
    tell(one)
    done(one)


def agent_worker(process: subprocess.Popen[str], local_rank: int = 0) -> AgentWorker:
    """As torch's agent lists it."""
    found = processes.find(process.pid)
    assert found is not None
    return AgentWorker(local_rank, local_rank, process.pid, found.born)


def tell(process: subprocess.Popen[str]) -> None:
    """Let it go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_worker_that_leaves_training_to_children_speaks_by_the_first_that_lives(
    files: StepFiles, worker: Worker
) -> None:
    """One after the other: what has ended says nothing more, and the step may begin again below."""
    reader = files.renew()
    one = worker(
        0,
        """
        import subprocess
        os.environ["LOCAL_RANK"] = "7"
        child = (
            "import sys; from elasticjob import report_progress; report_progress(int(sys.argv[1])); input()"
        )
        for step in (100, 3):
            sys.stdin.readline()
            beside = [
                subprocess.Popen([sys.executable, "-c", child, str(one)], stdin=subprocess.PIPE, **options)
                for one, options in ((step, {"start_new_session": True}), (2000 + step, {}))
            ]
            sys.stdin.readline()
            for process in beside:
                process.communicate(b"\\n")
            print("ended", flush=True)
        child = os.fork()
        if child == 0:
            report_progress(4)
            os._exit(0)
        os.waitpid(child, 0)
        print("forked", flush=True)
        sys.stdin.readline()
        """,
    )
    reader.follow(lambda: [agent])
    agent = agent_worker(one)
    assert one.stdout is not None
    tell(one)

    def speaks(step: int) -> bool:
        found = reader.read()
        return found is not None and found.step in (step, step + 2000)

    wait_for(lambda: speaks(100), 60, "the first child reports")
    tell(one)
    assert one.stdout.readline() == "ended\n"
    before = reader.read()
    tell(one)
    wait_for(lambda: speaks(3), 60, "the next one reports, and the first no more")
    found = reader.read()
    assert before is not None
    assert found is not None
    assert found.moved_at > before.moved_at
    tell(one)
    assert one.stdout.readline() == "ended\n"
    assert one.stdout.readline() == "forked\n"
    wait_for(lambda: speaks(4), 60, "a process that was forked reports, too")
    assert len([path for path in Path(reader.folder).iterdir() if "." in path.name]) == 1, (
        "files of the dead are removed"
    )
    tell(one)
    done(one)


@pytest.mark.parametrize("step", ["7", 1.5, None, [1]])
def test_what_is_no_step_is_named(step: object) -> None:
    with pytest.raises(TypeError, match=r"report_progress: step is .* expected a whole number"):
        elasticjob.report_progress(step)  # type: ignore[arg-type]


def test_whole_numbers_of_others_are_taken(files: StepFiles, worker: Worker) -> None:
    reader = files.renew()
    done(worker(0, "import numpy, torch; report_progress(numpy.int64(3)); report_progress(torch.tensor(4))"))
    assert steps_of(reader) == (3, 4)


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all"])
def test_it_never_raises_in_training(worker: Worker, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS_DIR_ENV, folder)
    done(worker(0, "report_progress(1); report_progress(2); report_progress(1 << 80)"))


def test_without_a_folder_training_goes_on(
    files: StepFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert files.renew().read() is None
    assert files.renew().read() is None
    assert caplog.text.count("No space left") == 1, "said once"


def test_who_removes_the_folder_at_the_same_time_closes_nothing_of_others(
    files: StepFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``shutdown`` comes from a signal handler, while a rendezvous renews the folder."""
    folder, close, times = Path(files.renew().folder), os.close, 0

    def shutdown_comes(descriptor: int) -> None:
        nonlocal times
        times += not folder.exists()
        if times == 1:
            files.remove()
        close(descriptor)

    monkeypatch.setattr(os, "close", shutdown_comes)
    files.remove()
    assert times == 1
    assert not folder.exists()


def test_what_a_killed_agent_has_left_is_removed(files: StepFiles) -> None:
    """And what a living one has is not."""
    script = (
        "import os, signal; from elasticjob.watch.step_files import StepFiles;"
        "files = StepFiles(); files.renew();"
        "print(os.environ['ELASTICJOB_PROGRESS_DIR'], flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert left.name.startswith(PREFIX)
        StepFiles().renew()
        assert left.exists()
    finally:
        process.kill()
        process.communicate()
    assert left.exists()
    files.renew()
    assert not left.exists()


def test_numbers_that_do_not_belong_together_are_not_believed(tmp_path: Path) -> None:
    """Every mixture of two writes that a reader can meet is the old, the new, or nothing."""
    path = tmp_path / "0"
    file = StepFile(str(path))
    file.write(5)
    old = path.read_bytes()
    file.write(6)
    new = path.read_bytes()
    whole = read_file(str(path))
    assert whole is not None
    assert (whole.first_step, whole.step) == (5, 6)
    meant = [LAYOUT.unpack(old), LAYOUT.unpack(new)]
    for mask in range(32):
        mixed = [meant[mask >> i & 1][i] for i in range(5)]
        path.write_bytes(LAYOUT.pack(*mixed))
        found = read_file(str(path))
        expected = next((Steps(m[0], m[1] / 1e9, m[2], m[3] / 1e9) for m in meant if tuple(mixed) == m), None)
        assert found == expected


@pytest.mark.parametrize("content", [b"", b"\0" * 39, b"\0" * 40, b"\xff" * 40])
def test_a_file_without_a_step_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0").write_bytes(content)
    assert read_file(str(tmp_path / "0")) is None


def test_a_reader_beside_a_writer_sees_only_what_was_written(files: StepFiles, worker: Worker) -> None:
    """Real concurrency: a worker that does nothing but report, an agent that does nothing but read."""
    reader = files.renew()
    one = worker(
        0,
        """
        import itertools, select
        for step in itertools.count():
            report_progress(step)
            if step % 1000 == 0 and select.select([sys.stdin], [], [], 0)[0]:
                print(step)
                break
        """,
    )
    seen: list[Steps] = []
    deadline = time.monotonic() + 60
    while len({found.step for found in seen}) < 300 and time.monotonic() < deadline:
        found = reader.read()
        if found is not None:
            seen.append(found)
    last = int(done(one))
    assert len({found.step for found in seen}) == 300
    assert steps_of(reader) == (0, last)
    assert all(a.step <= b.step and a.at <= b.at for a, b in itertools.pairwise(seen))
    assert all(found.first_step == 0 and found.first_at == seen[0].first_at for found in seen)


def test_steps_beyond_all_measure_are_ignored(tmp_path: Path) -> None:
    assert MAX_STEP > 10**15
    file = StepFile(str(tmp_path / "0"))
    assert file.highest == -1
    again = StepFile(str(tmp_path / "0"))
    again.write(7)
    found = read_file(str(tmp_path / "0"))
    assert found is not None
    assert found.step == 7, "a program that has called exec, or a process with a pid that was another's"
