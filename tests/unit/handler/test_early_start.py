"""Interpreters that are made before torchrun has imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import elasticjob
from devcluster.wait import wait_for
from elasticjob.warm import early_start
from elasticjob.warm.eligibility import Start
from elasticjob.warm.interpreter import WarmInterpreter
from elasticjob.warm.interpreter_count import MIB, Memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers are for Linux")

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(elasticjob.__file__).parent
SITE = PACKAGE / "warm" / "early_site"
PLENTY = Memory(1 << 40, 1 << 40)
SAYS_WHEN = """\
import time
print("imports torch from", time.clock_gettime(time.CLOCK_BOOTTIME), "on", flush=True)
"""
SECONDS = 200.0
WARM = {"PET_RDZV_BACKEND": "k8s", "PET_RDZV_CONF": "warm=on"}
PATH = os.pathsep.join([str(SITE), str(PACKAGE.parent), str(ROOT)])


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(early_start, "imports", lambda _text, more: ("fractions", *more))
    (tmp_path / "train.py").write_text("print('trains')")
    yield
    early_start.end()


def begin(nproc: int, processors: int, memory: Memory = PLENTY) -> dict[int, WarmInterpreter]:
    env = {**os.environ, **WARM, "PET_NPROC_PER_NODE": str(nproc)}
    early_start.begin(["python", "torchrun", "train.py"], env, processors, lambda: memory)
    return dict(early_start._made)


def test_one_processor_stays_torchrun_s_own() -> None:
    assert len(begin(1, 1)) == 0
    assert len(begin(3, 3)) == 2


def test_short_memory_makes_none() -> None:
    assert begin(2, 8, Memory(4000 * MIB, 500 * MIB)) == {}


def test_those_that_serve_are_taken_and_the_others_end() -> None:
    made = begin(2, 8)
    as_made = {rank: one.start for rank, one in made.items()}
    other = Start(as_made[1].args, {**as_made[1].env, "NEW": "1"}, as_made[1].cwd)
    taken = early_start.take({0: as_made[0], 1: other}, ())
    try:
        assert taken == {0: made[0]}
        assert made[0].process.poll() is None
        assert made[1].process.poll() is not None
    finally:
        made[0].end()
    assert early_start.take(as_made, ()) == {}


def test_other_imports_than_were_made_are_not_taken() -> None:
    made = begin(1, 8)
    assert early_start.take({0: made[0].start}, ("json",)) == {}
    assert made[0].process.poll() is not None


def test_processors_are_those_of_the_container(tmp_path: Path) -> None:
    all_of_them = len(os.sched_getaffinity(0))
    assert early_start._processors(tmp_path) == all_of_them
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert early_start._processors(tmp_path) == all_of_them
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert early_start._processors(tmp_path) == 1


def python(*args: str, path: str = PATH, **env: str) -> str:
    """What this interpreter prints, with the folder in PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    assert not done.stderr
    return done.stdout


def test_any_other_python_sees_nothing_of_it(tmp_path: Path) -> None:
    """Not even one whose environment is a torchrun's, such as a worker."""
    code = "import sys, json; print(json.dumps([sorted(sys.modules), sys.path]))"
    without = json.loads(python("-c", code, path=os.pathsep.join(PATH.split(os.pathsep)[1:])))
    assert json.loads(python("-c", code, **WARM)) == without

    (tmp_path / "sitecustomize.py").write_text("here = 'mine'")
    code = "import sitecustomize; print(sitecustomize.here, sitecustomize.__file__)"
    found = python("-c", code, path=f"{PATH}{os.pathsep}{tmp_path}")
    assert found == f"mine {tmp_path / 'sitecustomize.py'}\n"


@pytest.mark.timeout(600)
def test_a_torchrun_has_its_interpreter_before_it_has_imported_torch(tmp_path: Path) -> None:
    """And the same process is the worker; the script is torchrun's own, by its name."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    script = tmp_path / "torchrun"
    torchruns = (ROOT / "tests/unit/handler/scripts/warm_torchrun.py").read_text()
    script.write_text(torchruns.replace("import logging\n", f"{SAYS_WHEN}import logging\n", 1))
    (tmp_path / "train.py").write_text(
        "import os\nprint('pid', os.getpid())\nimport torch\n# TORCHDYNAMO: torch is enough\n"
    )
    with (tmp_path / "log").open("w") as log:
        torchrun = subprocess.Popen(
            [sys.executable, str(script), "--redirects=0", "train.py"],
            env={**os.environ, **WARM, "PYTHONPATH": PATH},
            stdout=log,
            stderr=log,
        )
    try:
        first = wait_for(lambda: spare(torchrun.pid), SECONDS, "an interpreter")
        started = start_of(first)
        assert torchrun.wait(SECONDS) == 0, (tmp_path / "log").read_text()
        text = (tmp_path / "log").read_text()
        assert started <= float(text.partition("imports torch from ")[2].split()[0]), text
        assert f"pid {first}\n" in text, text
        assert "worker 0 starts warm" in text, text
    finally:
        torchrun.kill()
        torchrun.wait()


def start_of(pid: int) -> float:
    """When a process was started, by the clock of ``SAYS_WHEN``; a tick is 10 ms."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("options", "code"), [(["--help"], 0), (["--max-restarts=many"], 2)])
def test_nothing_is_left_of_a_torchrun_that_ends_early(tmp_path: Path, options: list[str], code: int) -> None:
    """The first makes no interpreter, the second finds what is wrong only after one was made."""
    (tmp_path / "train.py").write_text("open('ran', 'w')\n# TORCHDYNAMO\n")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, "train.py"],
        env={**os.environ, **WARM, "PYTHONPATH": PATH},
        capture_output=True,
        timeout=SECONDS,
    )
    assert done.returncode == code
    wait_for(lambda: not in_folder(tmp_path) or None, SECONDS, "all processes have ended")
    assert not (tmp_path / "ran").exists()


def in_folder(folder: Path) -> list[psutil.Process]:
    """The processes that work there, but this one."""
    found = psutil.process_iter(["cwd"])
    return [one for one in found if one.info["cwd"] == str(folder) and one.pid != os.getpid()]


def spare(pid: int) -> int | None:
    """The interpreter that this torchrun has made, once it is no probe."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            if "train.py" in child.cmdline():
                return child.pid
    return None
