"""A worker that was made of a warm interpreter cannot tell that from a cold start: the same script is started
in both ways, and everything is compared."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from devcluster.wait import wait_for
from elasticjob.warm.boot.page import COLD, GONE, MODULE, READY, SCRIPT, UNUSABLE, WARM
from elasticjob.warm.eligibility import IMPORTS, OPTIMIZER_IMPORT, Start
from elasticjob.warm.interpreter import WarmInterpreter, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers are for Linux")

SCRIPTS = Path(__file__).with_name("scripts")
EARLY = "early"
SECONDS = 240.0


@dataclass
class End:
    """How a worker has ended, and what it has said."""

    code: int
    out: str
    err: str
    error_file: Any
    report: Any
    state: tuple[bytes, str] = field(default=(b"", ""), compare=False)


@dataclass
class Bench:
    """Starts workers cold and warm, in a folder of their own."""

    folder: Path
    before_the_worker: Callable[[], object] = bool
    wait_until_ready: bool = True
    pipes: bool = False
    imports: tuple[str, ...] = (EARLY,)
    env: dict[str, str] = field(default_factory=dict)
    of_the_round: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "site").mkdir()
        (self.folder / "work").mkdir()
        self.early("VALUE = 1\n")
        (self.folder / "site" / "local_module.py").write_text("VALUE = 'local'\n")

    def early(self, text: str, name: str = EARLY) -> Path:
        """Write a module that is imported beforehand."""
        path = self.folder / "site" / f"{name}.py"
        path.write_text(text)
        return path

    def script(self, text: str, name: str = "script.py") -> str:
        """Write a script."""
        (self.folder / "work" / name).write_text(text)
        return name

    def start(self, args: tuple[str, ...], of_round: bool = True) -> Start:
        base = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": str(self.folder / "site"),
            "PARENT": str(os.getpid()),
            "REPORT": str(self.folder / "report.json"),
            "OMP_NUM_THREADS": "1",
            **self.env,
        }
        ours = {
            "RANK": "3",
            "LOCAL_RANK": "0",
            "TORCHELASTIC_ERROR_FILE": str(self.folder / "error.json"),
            **self.of_the_round,
        }
        return Start(
            (sys.executable, "-u", *args), {**base, **(ours if of_round else {})}, str(self.folder / "work")
        )

    def warm_interpreter(self, *args: str) -> WarmInterpreter:
        made = WarmInterpreter(self.start(args, of_round=False), self.imports)
        if self.wait_until_ready:
            wait_for(
                lambda: not made.importing() or made.process.poll() is not None or None,
                SECONDS,
                "the imports are done",
            )
        return made

    def run(self, warm: bool, *args: str) -> End:
        for name in ("report.json", "error.json"):
            (self.folder / name).unlink(missing_ok=True)
        wanted = self.start(args)
        with ExitStack() as files:
            out, err = self._output(files, "out"), self._output(files, "err")
            if warm:
                one = self.warm_interpreter(*args)
                self.before_the_worker()
                process = one.become(wanted, out[1], err[1])
            else:
                self.before_the_worker()
                process = subprocess.Popen(
                    wanted.args,
                    env=wanted.env,
                    cwd=wanted.cwd,
                    stdout=out[1],
                    stderr=err[1],
                    start_new_session=True,
                )
            try:
                code = process.wait(SECONDS)
            finally:
                process.kill()
                process.wait()
            said_out, said_err = self._read(out[0]), self._read(err[0])
        report = self._json("report.json")
        error = self._json("error.json")
        return End(
            code,
            said_out,
            said_err,
            error and error["message"]["message"],
            report,
            one.state() if warm else (b"", ""),
        )

    def _output(self, files: ExitStack, name: str) -> tuple[int, int]:
        """Where to read what is written, and where to write: a file or a pipe, which a stream can tell."""
        if self.pipes:
            both = os.pipe()
        else:
            path = self.folder / name
            written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            both = os.open(path, os.O_RDONLY), written
        for one in both:
            files.callback(os.close, one)
        return both

    @staticmethod
    def _read(descriptor: int) -> str:
        there = select.select([descriptor], [], [], 0)[0]
        return os.read(descriptor, 1 << 20).decode() if there else ""

    def both(self, *args: str) -> tuple[End, End]:
        """A cold start and a warm one."""
        return self.run(False, *args), self.run(True, *args)

    def _json(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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


CHANGES_ENV = """
import os
os.environ["{name}"] = "x"
import early
print(early.SEEN, os.environ["{name}"])
"""


def test_an_environment_that_the_script_changes_before_its_imports_is_seen_by_them(bench: Bench) -> None:
    bench.early("import os; SEEN = os.environ.get('OMP_PLACES')\n")
    cold, warm = bench.both(bench.script(CHANGES_ENV.format(name="OMP_PLACES")))
    assert warm == cold
    assert cold.out == "x x\n"
    assert warm.state == (SCRIPT, "the script sets OMP_PLACES before it imports early")


def test_what_torch_does_not_read_at_import_may_be_set_before(bench: Bench) -> None:
    bench.early("SEEN = None\n")
    cold, warm = bench.both(bench.script(CHANGES_ENV.format(name="NCCL_DEBUG")))
    assert warm == cold
    assert warm.state == (WARM, "")


def test_a_module_that_has_changed_is_imported_again(bench: Bench) -> None:
    script = bench.script("import early; print(early.VALUE)")
    one = bench.early("VALUE = 1\n")
    bench.before_the_worker = lambda: one.write_text("VALUE = 'new'\n")
    warm = bench.run(True, script)
    assert (warm.code, warm.out) == (0, "new\n")
    assert warm.state == (COLD, f"{one} has changed")


def test_the_script_itself_is_read_when_it_starts(bench: Bench) -> None:
    script = bench.script("print('old')")
    bench.before_the_worker = lambda: bench.script("print('new')")
    warm = bench.run(True, script)
    assert (warm.out, warm.state) == ("new\n", (WARM, ""))


def test_a_module_beside_the_script_that_hides_one_counts(bench: Bench) -> None:
    script = bench.script("import early; print(early.VALUE)")
    hiding = bench.folder / "work" / "early.py"
    bench.before_the_worker = lambda: hiding.write_text("VALUE = 'beside'\n")
    warm = bench.run(True, script)
    assert (warm.code, warm.out, warm.state[0]) == (0, "beside\n", COLD)
    assert str(hiding) in warm.state[1]


@pytest.mark.parametrize(
    ("text", "state", "why"),
    [
        ("raise ValueError('broken')", MODULE, "early: ValueError: broken"),
        ("raise KeyboardInterrupt", UNUSABLE, "KeyboardInterrupt: "),
        ("raise SystemExit(0)", MODULE, "early: SystemExit: 0"),
        ("import not_there", MODULE, "early: ModuleNotFoundError: No module named 'not_there'"),
        ("f = open('/dev/kmsg')", UNUSABLE, "an import opened /dev/kmsg"),
    ],
)
# shows: an interpreter that waits to become a warm worker dies, or cannot be used
def test_what_a_script_may_never_import_does_not_fail_it(
    bench: Bench, text: str, state: bytes, why: str
) -> None:
    if "/dev/kmsg" in text and not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("there is no device to open")
    bench.early(text)
    one = bench.warm_interpreter(bench.script("print('runs')"))
    assert one.state() == (state, why)
    one.end()
    warm = bench.run(True, "script.py")
    assert (warm.code, warm.out) == (0, "runs\n"), "nor if torchrun has not looked"


def test_what_imports_write_comes_when_the_script_imports(bench: Bench) -> None:
    bench.early("import sys, warnings; print('out'); print('err', file=sys.stderr); warnings.warn('w')\n")
    cold, warm = bench.both(bench.script("print('first', flush=True); import early; print('last')"))
    assert warm == cold
    assert (cold.out, warm.state) == ("first\nout\nlast\n", (WARM, ""))
    cold, warm = bench.both(bench.script("print('no imports')"))
    assert warm == cold


def test_a_module_that_is_to_run_is_not_one_that_was_imported(bench: Bench) -> None:
    bench.early("print(__name__)\n")
    cold, warm = bench.both("-m", EARLY)
    assert warm == cold
    assert (cold.out, warm.state) == (
        "__main__\n",
        (COLD, "early, which is to run, was imported beforehand"),
    )


def test_finding_a_module_imports_nothing(bench: Bench) -> None:
    text = (
        "import importlib.util, sys\n"
        "s = importlib.util.find_spec('early')\n"
        "print(s.name, s.origin, s.has_location, 'early' in sys.modules)\n"
        "import early\n"
        "print(early.__loader__.name, importlib.util.find_spec('early').loader.name)\n"
    )
    cold, warm = bench.both(bench.script(text))
    assert warm.state == (WARM, "")
    assert warm == cold


def test_a_package_comes_with_what_it_has_imported(bench: Bench) -> None:
    bench.early("import below\n")
    bench.early("VALUE = 5\n", "below")
    text = (
        "import sys; print([n in sys.modules for n in ('early', 'below', 'other')]); import {one}\n"
        "print([n in sys.modules for n in ('early', 'below', 'other')], sys.meta_path[:1])"
    )
    bench.early("VALUE = 6\n", "other")
    bench.imports = ("early", "other")
    for one in ("early", "below", "other"):
        cold, warm = bench.both(bench.script(text.format(one=one)))
        assert warm.state == (WARM, "")
        assert warm.out.partition("] [")[0] == cold.out.partition("] [")[0]


ADDS = "import sys; sys.path.insert(0, '/first'); sys.path += ['/last', '/end']\n"
SHARED = "import sys; '/shared' in sys.path or sys.path.append('/shared')\n"
FOR_A_WHILE = "import sys; sys.path.insert(0, '/first'); import below; sys.path.pop(0)\n"


@pytest.mark.parametrize("args", [("script.py",), ("-m", "script")], ids=["script", "module"])
@pytest.mark.parametrize(
    ("modules", "imports", "last"),
    [
        ({"early": "import below\n", "below": ADDS}, "early", "/end"),
        ({"early": "import below\n", "below": ADDS}, "below", "/end"),
        ({"early": ADDS, "other": "import sys; sys.path.append('/other')\n"}, "early", "/end"),
        ({"early": ADDS, "other": "import sys; sys.path.append('/other')\n"}, "early, other", "/other"),
        ({"early": SHARED, "other": SHARED}, "other", "/shared"),
        ({"early": FOR_A_WHILE, "below": ""}, "early", "/site"),
    ],
    ids=["its own", "below", "first of two", "one after the other", "shared", "for a while"],
)
def test_folders_that_modules_add_come_when_the_script_imports_them(
    bench: Bench, modules: dict[str, str], imports: str, last: str, args: tuple[str, ...]
) -> None:
    for name, text in modules.items():
        bench.early(text, name)
    bench.imports = tuple(name for name in modules if name != "below")
    bench.script(
        f"import sys; sys.path.insert(0, '/own'); print(sys.path); import {imports}, early; print(sys.path)"
    )
    cold, warm = bench.both(*args)
    assert warm.state == (WARM, "")
    assert warm == cold
    assert last in cold.out.splitlines()[1]


@pytest.mark.parametrize("text", ["sys.path.insert(1, '/second')", "sys.path.pop()"])
def test_a_module_that_changes_the_path_otherwise_is_not_imported_beforehand(bench: Bench, text: str) -> None:
    bench.early(f"import sys; {text}\n")
    cold, warm = bench.both(bench.script("import sys, early; print(sys.path)"))
    assert warm.state[0] == COLD
    assert "early: with it, folders are taken out of sys.path, or added between others" in warm.state[1]
    assert warm == cold


def test_the_user_s_own_customization_runs_as_ever(bench: Bench) -> None:
    bench.early("import builtins; builtins.OWN = __name__; print('customized')\n", "sitecustomize")
    text = "import sys; print(OWN, sys.modules['sitecustomize'].__file__, 'usercustomize' in sys.modules)"
    cold, warm = bench.both(bench.script(text))
    assert warm.state == (WARM, "")
    assert warm == cold


def test_a_customization_that_fails_is_reported_as_ever(bench: Bench) -> None:
    bench.early("raise ValueError('mine')\n", "sitecustomize")
    cold, warm = bench.both(bench.script("print('runs')"))
    assert warm == cold
    assert "ValueError: mine" in cold.err


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
