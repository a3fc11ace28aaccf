"""Run the end-to-end tests marked ``matrix`` with each version of torch in the pods; a table in the end.

Operator and pytest run in this environment; only what runs in pods changes. The handler's unit tests run
first, in the version's own interpreter.

With --python, only those: in an environment of that Python, which must be installed.

Usage: python -m tests.matrix [VERSION ...] [-k EXPRESSION] [--python VERSION]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.matrix.environments import ENVIRONMENTS, PYTHONS, ROOT, Environment, NoEnvironment

RESULT = re.compile(r"\S+::(\w+\S*) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
UNIT = (
    "tests/unit/handler",
    "tests/unit/test_torch_version.py",
    "tests/unit/test_worker_failures.py",
)
END_TO_END = ("-m", "matrix", "tests/e2e")
Results = dict[str, str]
"""Test -> passed, failed, error or skipped."""


def main(arguments: list[str]) -> int:
    """Exit code: 0 if nothing has failed in any version, and something has run in each."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(ENVIRONMENTS)}; all")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only end-to-end tests that match")
    parser.add_argument("--python", choices=PYTHONS, help="the handler's unit tests alone, on this Python")
    options = parser.parse_args(arguments)
    if options.python:
        return of_python(PYTHONS[options.python])
    unknown = sorted(set(options.versions) - set(ENVIRONMENTS))
    if unknown:
        parser.error(f"no version {', '.join(unknown)}; there are {', '.join(ENVIRONMENTS)}")
    table: dict[str, Results] = {}
    good = True
    for environment in (ENVIRONMENTS[name] for name in options.versions or ENVIRONMENTS):
        began = time.monotonic()
        if not environment.is_made():
            print(f"== {environment.folder.name} is made: some gigabytes, 1-3 minutes", flush=True)
        try:
            environment.make()
        except NoEnvironment as error:
            print(f"== torch {environment.name}: {error}", flush=True)
            table[environment.name] = {}
            good = False
            continue
        version = environment.torch()
        print(f"== torch {version} in pods, started by {environment.torchrun}", flush=True)
        results, passed = test(environment, options.k)
        table[version] = results
        good = good and passed
        print(f"== torch {version}: {time.monotonic() - began:.0f} s", flush=True)
    print_table(table)
    return 0 if good else 1


def of_python(environment: Environment) -> int:
    """The handler's unit tests on one Python. Exit code as that of ``main``."""
    try:
        environment.make()
    except NoEnvironment as error:
        print(error, flush=True)
        return 1
    print(f"== torch {environment.torch()} on {environment.python}", flush=True)
    return 0 if unit(environment)[1] else 1


def test(environment: Environment, expression: str) -> tuple[Results, bool]:
    """All tests of one version; whether all is well."""
    results, good = unit(environment)
    selection = [*END_TO_END, *(["-k", expression] if expression else [])]
    found, passed = run(environment, sys.executable, selection, show=True)
    return results | found, good and passed


def unit(environment: Environment) -> tuple[Results, bool]:
    """The handler's unit tests, in the environment's own interpreter."""
    results: Results = {}
    good = True
    for file in UNIT:
        found, passed = run(environment, str(environment.python), (file,), show=False)
        good = good and passed
        counts = Counter(found.values())
        results[file] = "passed" if passed else "failed"
        words = ", ".join(f"{count} {word}" for word, count in counts.items())
        print(f"   {environment.name:8}{file:75}{results[file]:8}({words})", flush=True)
    return results, good


def run(environment: Environment, python: str, selection: Sequence[str], show: bool) -> tuple[Results, bool]:
    """One pytest; ``show`` prints a line for each test as it ends. pytest's own output goes to a file, which
    a failure names."""
    log = environment.folder / f"matrix-{re.sub('[^a-z_]+', '-', selection[-1])}.log"
    variables = {
        **os.environ,
        "ELASTICJOB_TEST_PYTHON": str(environment.python),
        "ELASTICJOB_TEST_TORCHRUN": environment.torchrun,
        "PYTHONUNBUFFERED": "1",
    }
    results: Results = {}
    with (
        log.open("w") as file,
        subprocess.Popen(
            [python, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *selection],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        began = time.monotonic()
        for line in process.stdout:
            file.write(line)
            found = RESULT.match(line)
            # A test that has passed may still get an error, in its teardown; the summary repeats failures.
            if found is None or results.get(found[1]) in ("failed", "error"):
                continue
            results[found[1]] = found[2].lower()
            seconds, began = time.monotonic() - began, time.monotonic()
            if show:
                print(
                    f"   {environment.name:8}{found[1]:75}{results[found[1]]:8}{seconds:4.0f} s", flush=True
                )
    good = process.returncode == 0 and "passed" in results.values()
    if not good:
        print(f"   pytest ended with {process.returncode}; its output is {log}", flush=True)
        print(*log.read_text().splitlines()[-30:], sep="\n", flush=True)
    return results, good


def print_table(table: dict[str, Results]) -> None:
    """Tests down, versions across."""
    tests = list(dict.fromkeys(test for results in table.values() for test in results))
    width = max((len(test) for test in tests), default=4) + 2
    print("\n" + "torch".ljust(width) + "".join(version.ljust(16) for version in table))
    for test in tests:
        row = "".join(results.get(test, "not run").ljust(16) for results in table.values())
        print(test.ljust(width) + row)
    counts = (
        f"{sum(r == 'passed' for r in results.values())} of {len(results)}".ljust(16)
        for results in table.values()
    )
    print("passed".ljust(width) + "".join(counts), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
