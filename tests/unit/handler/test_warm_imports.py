"""What a warm worker has imported beforehand comes when its script imports it, and as a cold start has it."""

from __future__ import annotations

import os
import sys

import pytest

from elasticjob.warm.boot.page import COLD, MODULE, SCRIPT, UNUSABLE, WARM
from tests.unit.handler.bench import EARLY, Bench

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers are for Linux")

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
