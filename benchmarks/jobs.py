"""`make bench-jobs`: what many small jobs cost one operator, and how quickly it acts on one of them.

For each number of jobs a control plane and an operator of its own, and the phases of `jobs_phases`: until all
train, a minute in which nothing happens, single losses, a storm of losses, an operator that is killed and
started again, one that takes over, and the deletion of all jobs.

The API server, etcd, the controllers and the operator are the real processes; nodes and participants are
played (`jobs_nodes`). Fails unless every job trains and every phase was measured; aims that a run has missed
are listed at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.jobs_nodes import Nodes
from benchmarks.jobs_phases import HOSTILE, PHASES, Figures, Options, Run, namespaces, say
from benchmarks.jobs_table import document, missed
from benchmarks.k8s import ControlPlane

_SIZES = (10, 100, 300, 1000)
_CONNECTIONS = 64
"""Of all nodes and participants together."""
_SETTLE_SECONDS = 2.0
"""Between the namespaces and the operator's start."""


def main() -> int:
    """Entry point."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[int, dict[str, Figures]] = {}
    facts: Mapping[str, object] = {}
    for jobs in options.jobs:
        with tempfile.TemporaryDirectory() as temporary, ControlPlane(operator=False) as plane:
            folder = Path(temporary) if options.out is None else options.out / f"{jobs}-jobs"
            folder.mkdir(parents=True, exist_ok=True)
            facts = facts or {**environment(plane.version), "pods of a job": options.pods}
            for namespace in namespaces(options.namespaces):
                answer = plane.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
                assert answer.ok, answer.text
            time.sleep(_SETTLE_SECONDS)
            results[jobs] = asyncio.run(_measure(plane, jobs, options, folder))
        text = document(results, facts)
        if options.out is not None:
            (options.out / "jobs.json").write_text(
                json.dumps({"facts": facts, "results": results}, indent=2) + "\n"
            )
            (options.out / "jobs.md").write_text(text)
    print(text)
    say("\n".join(missed(results)) or "every aim was reached")
    return int(any("missed" in figures for run in results.values() for figures in run.values()))


async def _measure(
    plane: ControlPlane, jobs: int, options: argparse.Namespace, folder: Path
) -> dict[str, Figures]:
    cluster = plane.cluster
    nodes = Nodes(cluster.server, str(cluster.ca_file), cluster.admin_token, _CONNECTIONS)
    nodes.start()
    chosen = Options(
        jobs,
        options.pods,
        options.namespaces,
        options.window,
        options.losses,
        options.phases,
        options.hostile,
    )
    try:
        return await Run(plane, nodes, chosen, folder).run()
    finally:
        await nodes.aclose()


def _sizes(text: str) -> Sequence[int]:
    sizes = [int(word) for word in text.split(",")]
    if min(sizes) < 4:
        raise argparse.ArgumentTypeError(f"expected numbers of at least 4 jobs, such as 10,100; found {text}")
    return sizes


def _phases(text: str) -> Sequence[str]:
    phases = text.split(",")
    there = (*PHASES, HOSTILE)
    unknown = set(phases) - set(there)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(there)}")
    return phases


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--jobs", type=_sizes, default=_SIZES, help="numbers of jobs, default 10,100,300,1000"
    )
    parser.add_argument("--pods", type=int, default=8, help="of each job, default %(default)s")
    parser.add_argument("--phases", type=_phases, default=PHASES, help=f"default {','.join(PHASES)}")
    parser.add_argument("--namespaces", type=int, default=10, help="default %(default)s")
    parser.add_argument(
        "--window", type=float, default=60.0, help="seconds of the steady state, default %(default)s"
    )
    parser.add_argument("--losses", type=int, default=30, help="one after the other, default %(default)s")
    parser.add_argument(
        "--hostile",
        type=float,
        default=600.0,
        help="seconds of the phase hostile, in which one tenant does what it can and which has to be asked "
        "for (--phases start,hostile), default %(default)s",
    )
    parser.add_argument("--out", type=Path, help="a folder for jobs.json, jobs.md and the operators' logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
