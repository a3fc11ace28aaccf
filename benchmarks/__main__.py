"""`python -m benchmarks`: measure, and write `results.json`, `table.md` and `plot.png`.

The files are written again after every measurement: a run that is stopped leaves what it had.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import arguments, measures
from benchmarks.backends import Backend
from benchmarks.c10d import C10d
from benchmarks.crew import CrewError, start_zygote
from benchmarks.environment import environment
from benchmarks.plan import (
    BACKENDS,
    BREAKDOWN,
    JOIN,
    NOTICING,
    REJOIN,
    REPLACE,
    SCALE,
    SHRINK,
    SIZES,
    STEADY,
    TASK_SECONDS,
    TOTAL_SECONDS,
    WHATS,
    Task,
    in_turns,
    plan,
)
from benchmarks.results import JOB_DIED, OK, STANDBY, STORE_SHARING_OFF, TIMEOUT, Outcome, Samples
from benchmarks.table import table
from benchmarks.zygote import Zygote

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Entry point."""
    arguments = _parse()
    tasks = plan(arguments.what, arguments.n, arguments.runs, arguments.backend)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.out.mkdir(parents=True, exist_ok=True)
    if BREAKDOWN in arguments.what:
        _break_down(arguments)
    if SCALE in arguments.what:
        _scale(arguments)
    if NOTICING in arguments.what or STEADY in arguments.what:
        _wait_and_see(arguments)
    if not tasks:
        return
    with contextlib.ExitStack() as stack:
        zygote = stack.enter_context(start_zygote())
        backends: dict[tuple[str, str], Backend] = {
            ("c10d", variant): C10d(variant) for variant in ("", STORE_SHARING_OFF)
        }
        version = None
        if any(task.backend == "k8s" for task in tasks):
            from benchmarks.k8s import ControlPlane, K8s

            plane = stack.enter_context(ControlPlane())
            version = plane.version
            backends |= {("k8s", variant): K8s(plane, variant) for variant in ("", STANDBY)}
        samples = Samples(environment(version))
        _run(zygote, tasks, backends, samples, arguments.out, thrifty=arguments.runs is None)
    _write(samples, arguments.out, picture=True)
    print(f"\n{table(samples)}\nwritten to {arguments.out}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    known = (*WHATS, SCALE, BREAKDOWN, NOTICING, STEADY)
    parser.add_argument(
        "--what",
        type=arguments.words(known),
        default=(*WHATS, SCALE),
        help=f"of {','.join(known)}; default: all but {BREAKDOWN}, {NOTICING} and {STEADY}",
    )
    parser.add_argument(
        "--n", type=arguments.sizes, help=f"participants, default {','.join(map(str, SIZES))}"
    )
    parser.add_argument("--runs", type=int, help="how often; default: what fits into 40 minutes")
    parser.add_argument(
        "--backend", type=arguments.words(BACKENDS), default=BACKENDS, help=f"of {','.join(BACKENDS)}"
    )
    parser.add_argument(
        "--only", default="", help=f"of {BREAKDOWN}: variants with this in their name, such as 'warm'"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    return parser.parse_args()


def _break_down(arguments: argparse.Namespace) -> None:
    from benchmarks import breakdown_runs

    breakdown_runs.measure(arguments.out, arguments.n, arguments.runs, arguments.backend, arguments.only)
    print(f"\n{(arguments.out / 'breakdown.md').read_text()}\nwritten to {arguments.out}")


def _scale(arguments: argparse.Namespace) -> None:
    from benchmarks import scale

    ours = arguments.n or scale.SHORT_SIZES if "k8s" in arguments.backend else ()
    others = arguments.n or scale.OTHERS_SIZES if "c10d" in arguments.backend else ()
    what = scale.Extent(ours=ours, others=others, rejoins=arguments.runs or scale.REJOINS)
    scale.run(what, arguments.out)


def _wait_and_see(arguments: argparse.Namespace) -> None:
    """Losses that only heartbeats show, and the API server's load while nothing is lost."""
    from benchmarks import noticing, steady
    from benchmarks.k8s import ControlPlane, K8s

    with ControlPlane() as plane:
        if NOTICING in arguments.what:
            known: dict[str, Backend] = {"k8s": K8s(plane), "c10d": C10d("")}
            backends = {name: known[name] for name in arguments.backend}
            sizes, runs = arguments.n or noticing.SIZES, arguments.runs or noticing.RUNS
            noticing.run(arguments.out, sizes, runs, backends, environment(plane.version))
            print(f"\n{(arguments.out / 'noticing.md').read_text()}")
        if STEADY in arguments.what:
            steady.run(arguments.out, arguments.n or steady.SIZES, arguments.runs or 1, plane)
            print(f"\n{(arguments.out / 'steady.md').read_text()}")


def _run(
    zygote: Zygote,
    tasks: Sequence[Task],
    backends: Mapping[tuple[str, str], Backend],
    samples: Samples,
    out: Path,
    *,
    thrifty: bool,
) -> None:
    """Measure in turns. If `thrifty`, tasks that take long are repeated less often than planned."""
    began = time.monotonic()
    spent: dict[Task, float] = {}
    for task in in_turns(tasks):
        late = time.monotonic() - began > TOTAL_SECONDS
        if thrifty and task in spent and (late or spent[task] > TASK_SECONDS):
            continue
        started = time.monotonic()
        try:
            outcomes = _measure(zygote, task, backends[task.backend, task.variant])
        except (CrewError, TimeoutError) as error:
            failure = TIMEOUT if isinstance(error, TimeoutError) else JOB_DIED
            outcomes = {what: Outcome(None, failure, str(error)) for what in task.whats}
        for what, outcome in outcomes.items():
            samples.add(outcome.sample(what, task.backend, task.n, task.variant))
            _say(what, task, outcome)
        spent[task] = spent.get(task, 0.0) + time.monotonic() - started
        samples.environment["minutes"] = round((time.monotonic() - began) / 60, 1)
        _write(samples, out, picture=False)


def _measure(zygote: Zygote, task: Task, backend: Backend) -> dict[str, Outcome]:
    """One run of a task: an outcome for each of its `whats`."""
    (first, *_) = task.whats
    if first == REPLACE:
        return {REPLACE: measures.replace(zygote, backend, task.n, standby=task.variant == STANDBY)}
    if first == SHRINK:
        return {SHRINK: measures.shrink(zygote, backend, task.n)}
    join, rejoin = measures.join_and_rejoin(zygote, backend, task.n, rejoin=REJOIN in task.whats)
    found = {JOIN: join, REJOIN: rejoin}
    return {what: outcome for what, outcome in found.items() if what in task.whats and outcome is not None}


def _write(samples: Samples, out: Path, *, picture: bool) -> None:
    samples.write(out / "results.json")
    (out / "table.md").write_text(table(samples))
    if picture:
        from benchmarks.pictures import plot

        plot(samples, out / "plot.png")


def _say(what: str, task: Task, outcome: Outcome) -> None:
    name = f"{task.backend} {task.variant}".strip()
    figure = f"{outcome.seconds:.3f} s" if outcome.seconds is not None else outcome.outcome
    requests = f", {outcome.requests:.2f} API requests each" if outcome.requests is not None else ""
    used = "".join(f", {name} {value:.1f} ms" for name, value in outcome.processor.items())
    print(f"{what:18} n={task.n:<4} {name:24} {figure}{requests}{used}", flush=True)
    if outcome.outcome != OK and outcome.detail:
        print(f"    {outcome.detail.strip().splitlines()[-1][:300]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
