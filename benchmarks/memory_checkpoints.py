"""`python -m benchmarks.memory_checkpoints`: what memory checkpoints cost, and what a kill costs with them.

Real torchruns, operator and API server; the benchmark plays the pods. `save`: milliseconds per step, without
saves, with every step saved to memory, and with every step saved to a folder in memory (/dev/shm), in turns.
`kill`: kill -9 of a worker, and of a whole agent with a standby, until the first step that was never trained
before; resumed from memory, from a folder and from a slow store. `held`: the memory of the pods.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import arguments, memory_cost, memory_kills, quiet
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane, K8s
from benchmarks.memory_cost import Cost, Held
from benchmarks.memory_kills import Kill
from benchmarks.memory_table import Figures, table

RESULTS = Path(__file__).parent / "results"
SAVE, KILL, HELD = "save", "kill", "held"
WHATS = (SAVE, KILL, HELD)


def main() -> None:
    """Entry point."""
    options = _parse()
    quiet.refuse_if_busy(options)
    _refuse_if_short(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    with ControlPlane() as plane:
        facts = {**environment(plane.version), "step": f"{options.seconds:g} s"}
        figures = Figures(facts)
        for one in _measured(K8s(plane), options):
            print(one, flush=True)
            figures.add(one)
            (options.out / "memory_checkpoints.json").write_text(
                json.dumps(figures.content(), indent=1) + "\n"
            )
            (options.out / "memory_checkpoints.md").write_text(table(figures))
    print(f"\n{table(figures)}\nwritten to {options.out}")


def _measured(ours: K8s, options: argparse.Namespace) -> Iterator[Cost | Kill | Held]:
    """All figures; what is compared takes turns."""
    if SAVE in options.what:
        for run in range(options.runs):
            for megabytes, computes, ways in _costs(options):
                yield from memory_cost.turn(
                    ours, run, megabytes, options.seconds, options.steps, computes=computes, ways=ways
                )
    if HELD in options.what:
        for pods in options.pods:
            yield memory_cost.held(ours, pods, options.state, options.steps)
    if KILL in options.what:
        for _ in range(options.kills):
            for kind in memory_kills.KINDS:
                for source in memory_kills.SOURCES:
                    yield memory_kills.kill(ours, kind, source, options.state, options.folder)


def _costs(options: argparse.Namespace) -> Iterator[tuple[int, bool, tuple[str, ...]]]:
    """Megabytes that each rank saves, whether a step computes, and what is compared."""
    yield options.each, False, memory_cost.WAYS
    yield options.each, True, memory_cost.WAYS
    if options.large:
        yield options.large, False, (memory_cost.MEMORY, memory_cost.FOLDER)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_checkpoints", description=__doc__)
    parser.add_argument("--what", type=arguments.words(WHATS), default=WHATS, help=f"of {','.join(WHATS)}")
    parser.add_argument("--runs", type=int, default=5, help="of each way to save, default %(default)s")
    parser.add_argument("--steps", type=int, default=60, help="of each of these runs, default %(default)s")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a step, default %(default)s")
    parser.add_argument("--each", type=int, default=100, help="MB that each rank saves, default %(default)s")
    parser.add_argument(
        "--large",
        type=int,
        default=1000,
        help="MB that each rank saves for the stop of a large state; 0: none",
    )
    parser.add_argument("--kills", type=int, default=10, help="of each kind and source, default %(default)s")
    parser.add_argument(
        "--state", type=int, default=100, help="MB of the state in kill and held, default %(default)s"
    )
    parser.add_argument("--pods", type=arguments.sizes, default=(2, 4), help="in held, default 2,4")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="of kill, default %(default)s"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="default %(default)s")
    quiet.add_argument(parser)
    return parser.parse_args()


def _refuse_if_short(options: argparse.Namespace) -> None:
    """The states of all ranks, two saves and their copies; or the folder's two or three checkpoints."""
    each = max(options.large, options.each) if SAVE in options.what else options.state
    need = memory_cost.RANKS * (memory_cost.RANKS + 4) * each / 1000 + 2
    free = psutil.virtual_memory().available / 1e9
    if free < need:
        sys.exit(
            f"{free:.1f} GB of memory are free, expected {need:.1f} GB: use a smaller --large "
            f"({options.large}), or free memory"
        )


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{(time.monotonic() - began) / 60:.0f} minutes")
