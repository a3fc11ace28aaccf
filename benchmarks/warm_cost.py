"""`python -m benchmarks.warm_cost`: what warm workers cost training in the first minute of a round.

One torchrun trains on the CPU. While it does, it makes the interpreters for the next round, one after the
other, after the first step. Each pair of runs is one without warm workers and one with them, in turns; a pair
gives a ratio. With as many workers as cores, what an import takes is taken from training; with fewer, a core
is free for it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import arguments, markdown
from benchmarks.breakdown_runs import seat_of
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane, K8s
from benchmarks.torchruns import START_TIMEOUT_SECONDS, Torchruns, start, started_torchruns
from devcluster.wait import wait_for

RESULTS = Path(__file__).parent / "results"
SCRIPT = Path(__file__).parent / "busy_worker.py"
RUNS = 5
SECONDS = 60.0
READY = "warm workers: ready"


@dataclass(frozen=True)
class Pair:
    """Milliseconds per step of ``workers`` workers, without and with warm workers, over the first ``seconds``
    after the first step. ``ready``: whether all interpreters were there before the end."""

    workers: int
    seconds: float
    cold: float
    warm: float
    ready: bool

    @property
    def ratio(self) -> float:
        """The factor by which steps take longer."""
        return self.warm / self.cold


def main() -> None:
    """Entry point."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    pairs: list[Pair] = []
    with ControlPlane() as plane:
        facts = environment(plane.version)
        ours = K8s(plane)
        for run in range(options.runs):
            for workers in options.workers:
                pairs.append(_pair(ours, workers, options.seconds, warm_first=run % 2 == 1))
                print(f"{workers} workers: {pairs[-1]}, ratio {pairs[-1].ratio:.3f}", flush=True)
                content = {"pairs": [asdict(pair) for pair in pairs], "environment": facts}
                (options.out / "warm-cost.json").write_text(json.dumps(content, indent=1) + "\n")
                (options.out / "warm-cost.md").write_text(table(pairs, facts))
    print(f"\n{table(pairs, facts)}\nwritten to {options.out}")


def table(pairs: Sequence[Pair], facts: Mapping[str, object]) -> str:
    """Medians, and the ratios of the pairs."""
    rows = []
    for workers in sorted({pair.workers for pair in pairs}):
        found = [pair for pair in pairs if pair.workers == workers]
        ratios = [pair.ratio for pair in found]
        rows.append(
            [
                str(workers),
                f"{statistics.median(pair.cold for pair in found):.2f}",
                f"{statistics.median(pair.warm for pair in found):.2f}",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                f"{sum(pair.ready for pair in found)} of {len(found)}",
            ]
        )
    seconds = pairs[0].seconds
    return markdown.document(
        "What warm workers cost training",
        f"Milliseconds per step over the first {seconds:.0f} s after the first step of a round, in which the "
        "interpreters for the next one are made; afterwards they cost memory alone. One torchrun with so "
        "many workers, each of which keeps one core busy. Medians; runs without and with warm workers take "
        "turns, and the ratio is that of each pair: median (minimum to maximum). *ready*: runs in which all "
        "interpreters were ready within that time.",
        markdown.facts(facts),
        markdown.table(["workers", "without", "with warm workers", "with by without", "ready"], rows),
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_cost", description=__doc__)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers",
        type=arguments.numbers,
        default=tuple(sorted({1, cores})),
        help="of the torchrun; default: one, and as many as there are cores",
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="pairs, default %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="default %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    return parser.parse_args()


def _pair(ours: K8s, workers: int, seconds: float, *, warm_first: bool) -> Pair:
    found = {warm: _run(ours, workers, seconds, warm=warm) for warm in (warm_first, not warm_first)}
    return Pair(workers, seconds, found[False][0], found[True][0], found[True][1])


def _run(ours: K8s, workers: int, seconds: float, *, warm: bool) -> tuple[float, bool]:
    """Milliseconds per step, and whether interpreters are ready at the end."""
    with started_torchruns(script=SCRIPT) as torchruns, ours.session(1, 1) as session:
        start(torchruns, seat_of(session, 0, warm=warm), 0, workers)
        wait_for(lambda: _steps(torchruns), START_TIMEOUT_SECONDS, torchruns.log)
        first = _steps(torchruns)[0]
        wait_for(
            lambda: _steps(torchruns)[-1] > first + seconds, 3 * seconds + 60.0, torchruns.log, interval=1.0
        )
        in_time = [at for at in _steps(torchruns) if at <= first + seconds]
        log = (torchruns.folder / "0.log").read_text(errors="replace")
        ready = READY in log[max(log.rfind(" starts warm"), log.rfind(" starts cold"), 0) :]
    return 1000 * (in_time[-1] - first) / (len(in_time) - 1), ready


def _steps(torchruns: Torchruns) -> list[float]:
    """When the steps of one worker have ended; all of them step together."""
    paths = sorted(torchruns.folder.glob("0.*[0-9]"))
    if not paths:
        return []
    whole, _, _ = paths[0].read_text().rpartition("\n")
    return [float(line.split()[0]) for line in whole.splitlines()]


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{(time.monotonic() - began) / 60:.0f} minutes")
