"""`python -m benchmarks.scale`: joining and re-forming up to 4,000 participants, and what it costs.

Ours with participants as coroutines (`benchmarks.swarm`) against the real API server and the real operator
process; torch's c10d beside it with a process for each participant, up to where it ends. Writes
`scale.json`, `scale.md`, `scale.png` and `scale-cost.png`, again after every N.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import arguments, measures
from benchmarks.backends import Backend
from benchmarks.c10d import C10d
from benchmarks.crew import CrewError, start_zygote
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane, K8s, K8sSession
from benchmarks.meter import Meter
from benchmarks.plan import JOIN, REJOIN
from benchmarks.results import JOB_DIED, OK, TIMEOUT, Outcome, Sample, Samples
from benchmarks.scale_table import missed_aims, table
from benchmarks.swarm import Round, Swarm, SwarmError
from benchmarks.zygote import Zygote
from devcluster.build import kubernetes_version

RESULTS = Path(__file__).parent / "results"
SIZES = (2, 8, 32, 128, 256, 512, 1000, 2000, 4000)
SHORT_SIZES = SIZES[:-2]
"""The sizes of a run that is part of another."""
OTHERS_SIZES = (2, 8, 32, 128, 256)
REJOINS = 3
PROCESSES = 2
ONCE_FROM = 2000
"""From this number on there is one session: making the pods takes a minute."""
CALL_SECONDS = 180.0
GOGC = 400
"""GOGC of the measured API server. With Go's default of 100, collecting is nearly half of its work; see the
README."""
_REPORTS_SECONDS = 1.5
"""How long after a round its reports still count as its cost."""


FLOW_SCHEMA = Path(__file__).parent / "flow-schema.yaml"
_FLOW_SECONDS = 2.0
"""The API server follows a new flow schema within about a second and offers no sign of it."""


@dataclass(frozen=True)
class Extent:
    """What is measured: ours and c10d for these N, `sessions` first joins for each N of ours, `rejoins`
    after each of them, participants in `processes` processes, whether the API server gets our flow
    schema, and its GOGC."""

    ours: Sequence[int] = SIZES
    others: Sequence[int] = OTHERS_SIZES
    sessions: int = 1
    rejoins: int = REJOINS
    processes: int = PROCESSES
    flow_schema: bool = True
    gogc: int = GOGC


def main() -> None:
    """Entry point."""
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.again:
        write(Samples.read(arguments.out / "scale.json"), arguments.out, picture=True)
        return
    extent = Extent(
        arguments.n,
        arguments.others,
        arguments.sessions,
        arguments.rejoins,
        arguments.processes,
        arguments.flow_schema,
        arguments.gogc,
    )
    run(extent, arguments.out)


def run(extent: Extent, out: Path) -> None:
    """Measure, and write the files; again after every N, so that a run that is stopped leaves what it had."""
    out.mkdir(parents=True, exist_ok=True)
    samples = Samples(environment(kubernetes_version() if extent.ours else None))
    if extent.ours:
        samples.environment["processes of the swarm"] = extent.processes
        samples.environment["flow schema"] = FLOW_SCHEMA.name if extent.flow_schema else "none"
        samples.environment["the API server's GOGC"] = extent.gogc
        with ControlPlane(gogc=extent.gogc) as plane:
            if extent.flow_schema:
                plane.cluster.apply(FLOW_SCHEMA)
                time.sleep(_FLOW_SECONDS)
            for n in extent.ours:
                for _ in range(extent.sessions if n < ONCE_FROM else 1):
                    ours(plane, n, extent.rejoins, extent.processes, lambda sample: _say(samples, sample))
                write(samples, out, picture=False)
    if extent.others:
        with start_zygote() as zygote:
            others(zygote, C10d(""), extent.others, samples)
    write(samples, out, picture=True)
    print(f"\n{table(samples)}\nwritten to {out}")
    if missed := missed_aims(samples):
        print("\n".join(missed), file=sys.stderr)


def ours(plane: ControlPlane, n: int, rejoins: int, processes: int, found: Callable[[Sample], None]) -> None:
    """One job of N fresh participants: their first join, and then re-joins."""
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(K8s(plane, f"swarm-{time.monotonic_ns()}").session(n, n))
        swarm = stack.enter_context(Swarm(session.swarm_seats(), processes))
        meter = Meter(plane)
        for what in (JOIN, *[REJOIN] * rejoins):
            sample = one_round(what, n, session, swarm, meter)
            found(sample)
            if sample.outcome != OK:
                sys.stderr.write(plane.operator_log())
                return


def others(zygote: Zygote, backend: Backend, sizes: Sequence[int], samples: Samples) -> None:
    """c10d: a first join and a re-join of N processes, up to the N at which it ends."""
    for n in sizes:
        try:
            join, rejoin = measures.join_and_rejoin(zygote, backend, n)
        except (CrewError, TimeoutError) as error:
            join = Outcome(None, TIMEOUT if isinstance(error, TimeoutError) else JOB_DIED, str(error))
            rejoin = None
        for what, outcome in ((JOIN, join), (REJOIN, rejoin)):
            if outcome is not None:
                _say(samples, outcome.sample(what, backend.name, n))
        if join.outcome != OK:
            return


def write(samples: Samples, out: Path, *, picture: bool) -> None:
    """Write the files."""
    samples.write(out / "scale.json")
    (out / "scale.md").write_text(table(samples))
    if picture:
        from benchmarks.pictures import plot_scale

        plot_scale(samples, out / "scale.png")


def one_round(what: str, n: int, session: K8sSession, swarm: Swarm, meter: Meter) -> Sample:
    """All call at one moment; what it took and cost, reports included."""
    before, used = meter.read(), swarm.usage()
    try:
        passed = swarm.call(CALL_SECONDS)
        session.settled()
    except (SwarmError, TimeoutError) as error:
        failure = TIMEOUT if "did not return" in str(error) else JOB_DIED
        return Sample(what, "k8s", n, None, failure, str(error))
    time.sleep(_REPORTS_SECONDS)
    figures = meter.since(before)
    after = swarm.usage()
    figures |= {
        "refused": after.refused - used.refused,
        "bytes_sent": after.sent - used.sent,
        "bytes_received": after.received - used.received,
        "swarm_cpu_seconds": after.cpu_seconds - used.cpu_seconds,
    }
    return Sample(what, "k8s", n, passed.seconds, OK, "", _steps(passed) | figures)


def _steps(passed: Round) -> dict[str, float]:
    return {
        "told_seconds": passed.last_return - passed.call_at,
        "written_seconds": passed.last_written - passed.last_call,
        "published_seconds": passed.first_seen - passed.last_call,
        "seen_seconds": passed.last_seen - passed.last_call,
    }


def _say(samples: Samples, sample: Sample) -> None:
    samples.add(sample)
    figure = f"{sample.seconds:.3f} s" if sample.seconds is not None else f"{sample.outcome} {sample.detail}"
    costs = ", ".join(f"{name} {value:.6g}" for name, value in sample.figures.items())
    print(f"{sample.what:8} n={sample.n:<5} {sample.backend:8} {figure}  {costs}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0]
    )
    sizes = ",".join(map(str, SIZES))
    parser.add_argument(
        "--n", type=arguments.sizes, default=SIZES, help=f"participants of ours, default {sizes}"
    )
    parser.add_argument(
        "--sessions",
        type=int,
        default=3,
        help=f"first joins for each N below {ONCE_FROM}, default %(default)s",
    )
    parser.add_argument("--rejoins", type=int, default=REJOINS, help="after each first join: %(default)s")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="that hold the participants")
    fair = argparse.BooleanOptionalAction
    parser.add_argument("--flow-schema", action=fair, default=True, help=f"apply {FLOW_SCHEMA.name}")
    parser.add_argument("--gogc", type=int, default=GOGC, help="of the API server: %(default)s")
    others = ",".join(map(str, OTHERS_SIZES))
    parser.add_argument(
        "--others", type=arguments.sizes, default=OTHERS_SIZES, help=f"participants of c10d, default {others}"
    )
    parser.add_argument("--again", action="store_true", help="make table and plot again from scale.json")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
