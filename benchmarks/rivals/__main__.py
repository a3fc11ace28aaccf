"""`python -m benchmarks.rivals`: one training under one schedule of faults, by several systems in turns.

Each system trains the same model to the same step: three pods of one worker, at least two. On the way a
worker is killed, an agent, rank 0's agent, and the node of the coordinator (store, master, lighthouse or
operator) with the agent there; a pod is added, and is removed once it has trained. Written: minutes, steps
redone, seconds lost by each fault, and what ended it, as rivals.json, .md and .png.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import arguments, quiet
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane
from benchmarks.results import STORE_SHARING_OFF
from benchmarks.rivals import report
from benchmarks.rivals.dlrover import Dlrover
from benchmarks.rivals.judging import Result
from benchmarks.rivals.nvrx import Nvrx
from benchmarks.rivals.ours import Ours
from benchmarks.rivals.run import LIMIT_SECONDS, PATIENCE_SECONDS, PODS, Plan, play
from benchmarks.rivals.schedule import saved_every, schedule
from benchmarks.rivals.systems import System
from benchmarks.rivals.torch_c10d import TorchC10d
from benchmarks.rivals.torchft import Torchft

RESULTS = Path(__file__).parents[1] / "results"
OURS: dict[str, Callable[[ControlPlane], System]] = {
    "ours": lambda plane: Ours(plane),
    "warm": lambda plane: Ours(plane, warm=True),
    "memory": lambda plane: Ours(plane, warm=True, memory=True),
}
RIVALS: dict[str, Callable[[], System]] = {
    "c10d": TorchC10d,
    "c10d-off": lambda: TorchC10d(STORE_SHARING_OFF),
    "torchft": Torchft,
    "nvrx": lambda: Nvrx("nvrx", "0.7.0"),
    "nvrx-old": lambda: Nvrx("nvrx-old", "0.4.1"),
    "dlrover": Dlrover,
}
SYSTEMS = (*OURS, *RIVALS)


def main() -> None:
    """Entry point."""
    options = _parse()
    if options.again:
        facts, results = report.read(options.out)
        report.write(options.out, facts, results)
        return
    quiet.refuse_if_busy(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = Plan(
        options.steps,
        options.seconds,
        not options.undisturbed,
        options.patience,
        options.limit,
        options.keep,
    )
    results = list[Result]()
    with contextlib.ExitStack() as stack:
        needs = any(name in OURS for name in options.systems)
        plane = stack.enter_context(ControlPlane()) if needs else None
        facts = {
            **environment(plane.version if plane else None),
            "pods": PODS,
            "steps": plan.steps,
            "a step": f"{plan.seconds:g} s and its computation",
            "saved to storage every": f"{saved_every(plan.steps)} steps",
            report.FAULTS: " / ".join(str(fault.step) for fault in schedule(plan.steps)),
        }
        for system in _systems(options.systems, plane):
            print(f"{system.name}:", flush=True)
            result = play(system, plan)
            results.append(result)
            minutes = "" if result.minutes is None else f" in {result.minutes:.2f} minutes"
            print(
                f"  {result.ended}{minutes}, {result.redone} steps redone, step {result.reached}", flush=True
            )
            report.write(options.out, facts, results)
    print(f"\n{report.table(facts, results)}\nwritten to {options.out}")


def _systems(names: Sequence[str], plane: ControlPlane | None) -> list[System]:
    return [OURS[name](plane) if name in OURS and plane else RIVALS[name]() for name in names]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument(
        "--systems", type=arguments.words(SYSTEMS), default=SYSTEMS, help=f"of {','.join(SYSTEMS)}"
    )
    parser.add_argument("--steps", type=int, default=400, help="of the training, default %(default)s")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a step, default %(default)s")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_SECONDS,
        help="seconds without a new step after which a system has come to nothing, default %(default)g",
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, help="seconds for a system, default %(default)g"
    )
    parser.add_argument("--undisturbed", action="store_true", help="without faults")
    parser.add_argument("--again", action="store_true", help="table and plot from the figures that are there")
    parser.add_argument("--keep", type=Path, help="a folder for logs and stamps, which must be new")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default %(default)s")
    quiet.add_argument(parser)
    options = parser.parse_args()
    try:
        saved_every(options.steps)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{(time.monotonic() - began) / 60:.0f} minutes")
