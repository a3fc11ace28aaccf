"""Run the tests that depend on the API server with each Kubernetes that devcluster has; a table in the end.

Control plane, kubectl and their defaults change; nodes, operator and torch are the same.

Usage: python -m tests.matrix.kubernetes [VERSION ...] [-k EXPRESSION]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from devcluster.build import KUBERNETES_VARIABLE, ensure_built, kubernetes_version, kubernetes_versions
from tests.matrix.environments import ROOT

SELECTION = (
    "tests/integration",
    "tests/chart",
    "tests/e2e/test_losses.py",
    "tests/e2e/test_pods_of_others.py",
)
"""The definition, the policies, the rights and the chart; of real torchruns losses of every kind, and pods
that Kubernetes' own controllers make."""
WITH_A_SERVER = ("-m", "cluster and not slow and not nodes")
"""What needs no API server is the same with each version."""
# As `make test` runs them, with each test's name in the log as it ends.
SPREAD = ("-v", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
FOLDER = ROOT / "build" / "matrix-kubernetes"
"""What pytest printed and reported, by version."""


@dataclass(frozen=True)
class Result:
    """Of one test: ``outcome`` is passed, skipped or failed; ``reason`` is why it was skipped."""

    file: str
    test: str
    outcome: str
    reason: str = ""


def main(arguments: list[str]) -> int:
    """Exit code: 0 if nothing has failed with any version, and something has passed with each."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.kubernetes", description=__doc__)
    known = kubernetes_versions()
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(known)}; all")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only tests that match")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.versions) - set(known))
    if unknown:
        parser.error(f"no version {', '.join(unknown)}; there are {', '.join(known)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    table: dict[str, list[Result]] = {}
    good = True
    for version in options.versions or known:
        began = time.monotonic()
        patch = kubernetes_version(version)
        try:
            ensure_built(version)
        except RuntimeError as error:
            print(f"== Kubernetes {patch} can't be built: {error}", flush=True)
            table[patch] = []
            good = False
            continue
        print(f"== Kubernetes {patch}", flush=True)
        table[patch], passed = run(version, options.k)
        good = good and passed
        print(f"== Kubernetes {patch}: {time.monotonic() - began:.0f} s", flush=True)
    print_table(table)
    return 0 if good else 1


def run(version: str, expression: str) -> tuple[list[Result], bool]:
    """All tests with one version; whether all is well. A failure shows the end of pytest's output."""
    log, report = FOLDER / f"{version}.log", FOLDER / f"{version}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *SPREAD, f"--junitxml={report}", "-p", "no:cacheprovider"]
    command += [*SELECTION, *WITH_A_SERVER, *(["-k", expression] if expression else [])]
    variables = {**os.environ, KUBERNETES_VARIABLE: version, "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    results = read(report) if report.exists() else []
    good = done.returncode == 0 and any(result.outcome == "passed" for result in results)
    if not good:
        print(f"   pytest ended with {done.returncode}; its output is {log}", flush=True)
        print(*log.read_text().splitlines()[-30:], sep="\n", flush=True)
    return results, good


def read(report: Path) -> list[Result]:
    """The results in pytest's report. A test that has passed and whose teardown has failed is there twice."""
    results: dict[tuple[str, str], Result] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file, test = case.get("classname", "").replace(".", "/") + ".py", case.get("name", "")
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result = Result(file, test, "failed")
        elif skipped is not None:
            result = Result(file, test, "skipped", skipped.get("message", ""))
        else:
            result = Result(file, test, "passed")
        before = results.get((file, test))
        if before is None or before.outcome != "failed":
            results[file, test] = result
    return list(results.values())


def print_table(table: Mapping[str, list[Result]]) -> None:
    """Files down, versions across; then what was skipped or has failed."""
    files = sorted({result.file for results in table.values() for result in results})
    width = max((len(file) for file in files), default=10) + 2
    print("\n" + "Kubernetes".ljust(width) + "".join(version.ljust(24) for version in table))
    for file in [*files, ""]:
        cells = (
            [result.outcome for result in results if file in ("", result.file)] for results in table.values()
        )
        print((file or "all").ljust(width) + "".join(summary(cell).ljust(24) for cell in cells))
    for version, results in table.items():
        for result in results:
            if result.outcome != "passed":
                reason = f": {result.reason}" if result.reason else ""
                print(f"{version} {result.outcome} {result.file}::{result.test}{reason}")
    sys.stdout.flush()


def summary(outcomes: list[str]) -> str:
    """For example: 21 passed, 1 skipped."""
    return (
        ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes).items())) or "not run"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
