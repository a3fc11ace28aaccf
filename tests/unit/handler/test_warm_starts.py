"""A worker that was made of a warm interpreter cannot tell that from a cold start: the same script is started
in both ways, and everything is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from devcluster.wait import wait_for
from elasticjob.warm.boot.page import GONE, READY, WARM
from elasticjob.warm.eligibility import IMPORTS, OPTIMIZER_IMPORT, imports
from elasticjob.warm.interpreter import works
from tests.unit.handler.bench import EARLY, SECONDS, Bench, End

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers are for Linux")

SCRIPTS = Path(__file__).with_name("scripts")


def differences(cold: Any, warm: Any, path: str = "") -> list[str]:
    if isinstance(cold, dict) and isinstance(warm, dict):
        return [
            line
            for key in {**cold, **warm}
            for line in differences(cold.get(key), warm.get(key), f"{path}/{key}")
        ]
    return [] if cold == warm else [f"{path}: cold {cold!r}, warm {warm!r}"]


@pytest.mark.parametrize(
    "args", [("everything.py", "a", "--b"), ("-m", "everything", "a")], ids=["script", "module"]
)
def test_everything_that_a_script_can_see_is_the_same(bench: Bench, args: tuple[str, ...]) -> None:
    bench.imports = (*IMPORTS, OPTIMIZER_IMPORT)
    bench.pipes = "-m" in args
    bench.script((SCRIPTS / "everything.py").read_text(), "everything.py")
    cold, warm = bench.both(*args)
    assert cold.code == 0, cold.err
    assert warm.state == (WARM, "")
    modules = cold.report["same"].pop("modules"), warm.report["same"].pop("modules")
    assert set(modules[0]) <= set(modules[1]), "torch._dynamo is there early, and nothing is missing"
    after = "modules after an optimizer"
    assert set(cold.report["same"].pop(after)) <= set(warm.report["same"].pop(after))
    filters = cold.report["same"].pop("filters"), warm.report["same"].pop("filters")
    assert [one for one in filters[1] if "sympy" not in one] == filters[0]
    assert warm.report["same"]["before torch"]["meta_path"].pop(0) == "HandOver"
    for report in (cold.report["same"], warm.report["same"]):
        # torch._dynamo's own come with the first optimizer, in a cold start.
        report["after torch"].pop("atexit")
        report["after torch"]["torch is imported"].pop(2)
        own = report["path after an optimizer"][len(report["before torch"]["path"]) :]
        own = [one for one in own if one.startswith(tempfile.gettempdir())]
        assert len(own) <= 1, "torch 2.8 and before: of torch.distributed.nn, under a random name"
        report["path after an optimizer"] = [
            "temporary" if one in own else one for one in report["path after an optimizer"]
        ]
        report["after torch"]["path"] = [one for one in report["after torch"]["path"] if one not in own]
        report["main"].pop("__warningregistry__", None)  # counts changes of the filters
    found = differences(cold.report["same"], warm.report["same"])
    assert not found, "\n".join(found)
    assert (cold.code, cold.out, cold.err) == (warm.code, warm.out, warm.err)
    assert cold.report["varies"]["seed"] != warm.report["varies"]["seed"]


CHECKPOINTS = """
import sys
import torch
from elasticjob.worker.stack_signal import SIGNAL
from elasticjob.checkpoint import Checkpoints
import torch._dynamo
print(sorted(name for name in sys.modules if name.startswith("torch.distributed.checkpoint")))
with Checkpoints(sys.argv[1]):
    caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt:"))
    print(int(caught.split()[1], 16) >> (SIGNAL - 1) & 1)
"""


def test_a_script_with_checkpoints_finds_the_same_and_answers_for_stacks(
    bench: Bench, tmp_path: Path
) -> None:
    """With what checkpoints import of torch comes ``elasticjob``, before there is a rank."""
    bench.imports = imports(CHECKPOINTS, ())
    assert "torch.distributed.checkpoint" in bench.imports
    bench.of_the_round = {**bench.of_the_round, "ELASTICJOB_PROGRESS_DIR": str(tmp_path)}
    bench.script(CHECKPOINTS, "checkpoints.py")
    cold, warm = bench.both("checkpoints.py", str(tmp_path / "saves"))
    assert cold.code == 0, cold.err
    assert warm.state == (WARM, "")
    assert (warm.code, warm.out) == (0, cold.out)
    assert cold.out.rstrip().endswith("1"), "it is ready for the signal"


STREAMS = """
import sys
for stream in (sys.stdout, sys.stderr):
    print(stream.seekable(), stream.buffer.seekable(), stream.fileno(), stream.name, stream.mode)
    print(repr(stream))
    print(stream.buffer, stream.line_buffering, stream.write_through, stream is sys.__stdout__)
"""


@pytest.mark.parametrize("pipes", [True, False])
def test_output_is_what_torch_has_chosen(bench: Bench, pipes: bool) -> None:
    bench.pipes = pipes
    bench.early("import sys; STREAM = sys.stdout\n")
    script = bench.script(STREAMS + "import early; print(early.STREAM is sys.stdout)")
    cold, warm = bench.both(script)
    assert warm.state == (WARM, "")
    assert warm == cold
    assert cold.out.splitlines()[0].startswith("False" if pipes else "True")


ENDS = [
    "code",
    "text",
    "none",
    "raises",
    "syntax",
    "at once",
    "interrupted",
    "SIGINT",
    "SIGTERM",
    "SIGKILL",
    "SIGUSR1",
    "segmentation fault",
    "abort",
    "faulthandler",
    "at exit",
    "chain",
    "hook",
    "thread raises",
    "stdin",
    "children",
    "environment of children",
    "resources",
]


@pytest.mark.parametrize("what", ENDS)
def test_every_end_is_the_same(bench: Bench, what: str) -> None:
    bench.script((SCRIPTS / "ends.py").read_text(), "ends.py")
    cold, warm = bench.both("ends.py", what)
    assert warm.state == (WARM, "")
    assert without_addresses(warm) == without_addresses(cold)
    assert cold.code != 1 or cold.err or cold.out


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("record", marks=pytest.mark.slow),
        pytest.param("data loader", marks=pytest.mark.slow),
        "never imports torch",
    ],
)
def test_what_needs_torch_ends_in_the_same_way(bench: Bench, what: str) -> None:
    bench.imports = (*IMPORTS, OPTIMIZER_IMPORT, EARLY)
    bench.script((SCRIPTS / "ends.py").read_text(), "ends.py")
    cold, warm = bench.both("ends.py", what)
    assert warm.state == (WARM, "")
    assert without_addresses(warm) == without_addresses(cold)
    assert (cold.error_file is not None) == (what == "record")


def without_addresses(end: End) -> End:
    end.err = re.sub(r"0x[0-9a-f]{8,}|\b\d{4,}\b", "N", end.err)
    return end


def test_a_worker_that_is_wanted_before_the_imports_are_done_waits_for_them(bench: Bench) -> None:
    bench.wait_until_ready = False
    bench.early("import time; time.sleep(1); VALUE = 2\n")
    script = bench.script("import early; print(early.VALUE)")
    warm = bench.run(True, script)
    assert (warm.code, warm.out, warm.state) == (0, "2\n", (WARM, ""))


@pytest.mark.parametrize("ready", [True, False])
def test_it_ends_with_torchrun_and_never_with_0(bench: Bench, ready: bool) -> None:
    bench.wait_until_ready = ready
    bench.early("import time; time.sleep(0.3)\n")
    one = bench.warm_interpreter(bench.script("print('must not run')"))
    one._channel.close()
    assert one.process.wait(SECONDS) == GONE != 0


OWNER = """
import os, sys, time
from elasticjob.warm.eligibility import Start
from elasticjob.warm.interpreter import WarmInterpreter
start = Start((sys.executable, "-u", "script.py"), dict(os.environ), os.getcwd())
made = [WarmInterpreter(start, ["fractions"]) for _ in range(2)]
while any(one.importing() for one in made):
    time.sleep(0.02)
print(*(one.process.pid for one in made), flush=True)
time.sleep(600)
"""


def test_they_end_with_a_torchrun_that_is_killed(bench: Bench) -> None:
    bench.script("print('must not run')")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=bench.folder / "work", stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(running, pids))
    owner.kill()
    owner.wait()
    wait_for(lambda: not any(map(running, pids)), SECONDS, "they end")
    assert "must not run" not in owner.stdout.read()
    owner.stdout.close()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_it_has_ended_when_a_worker_is_wanted(bench: Bench) -> None:
    one = bench.warm_interpreter(bench.script("pass"))
    one.process.kill()
    one.process.wait()
    with pytest.raises(OSError):
        one.become(bench.start(("script.py",)), 1, 2)


def test_an_environment_of_any_size_is_handed_over_at_once(bench: Bench) -> None:
    bench.of_the_round = {f"MASTER_{n}": "x" * 100_000 for n in range(8)}
    bench.wait_until_ready = False
    bench.early("import time; time.sleep(0.5)\n")
    cold, warm = bench.both(bench.script("import os; print(len(str(dict(os.environ))))"))
    assert warm == cold
    assert warm.state == (WARM, "")


def test_a_python_that_does_not_run_it_is_found_out(tmp_path: Path) -> None:
    assert works(sys.executable, os.environ)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    wrapper.chmod(0o755)
    assert not works(str(wrapper), os.environ)
    assert not works(str(tmp_path / "missing"), os.environ)


def test_while_it_waits_it_dies_before_a_worker(bench: Bench) -> None:
    one = bench.warm_interpreter(bench.script("pass"))
    try:
        assert one.state()[0] == READY
        assert Path(f"/proc/{one.process.pid}/oom_score_adj").read_text() == "1000\n"
    finally:
        one.end()


def test_a_process_name_that_ends_in_half_a_letter_is_read_and_set_again() -> None:
    """A module may set one while it is imported beforehand, as setproctitle does."""
    script = """
from elasticjob.warm.boot.process import PROCESS_NAME, read, write
open(PROCESS_NAME, "wb").write(("é" * 8).encode()[:15])
before, name = open(PROCESS_NAME, "rb").read(), read(PROCESS_NAME)
write(PROCESS_NAME, "other")
write(PROCESS_NAME, name)
assert open(PROCESS_NAME, "rb").read() == before, before
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
