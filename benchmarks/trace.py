"""One re-join, step by step: `trace.json`, `trace.md` and `trace.png`.

N participants call again after a completed round, all at the same moment. Each participant and the operator
note when they did what (`traced_participant`, `traced_operator`), and the CPU that each side took is read
before and after. The figures are medians over the runs, from the last participant's call; the picture shows
the run in the middle.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from benchmarks.crew import Crew, collect, in_time_for, start_zygote
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane, K8s
from benchmarks.markdown import document, facts
from benchmarks.markdown import table as markdown_table
from benchmarks.measures import JOIN_TIMEOUT_SECONDS, call_together, start_crew
from benchmarks.participant import TRACE_ENV, Call, Returned
from benchmarks.results import OK
from benchmarks.zygote import Zygote

SIZES = (2, 8, 32, 128)
RUNS = 9
STEPS = ("announcing", "announced", "woken", "connected", "barrier passed", "returned")
"""Of a participant. Not all connect: the leader has the store."""
STATUS, LEASE, EVENT = "status", "round Lease", "Event"
WRITES = (STATUS, LEASE, EVENT)
_EARLIER_SECONDS = 0.05


@dataclass(frozen=True)
class Span:
    """What the operator did, in seconds from the last participant's call."""

    what: str
    began: float
    ended: float


@dataclass(frozen=True)
class Trace:
    """One re-join. ``reached``: when the participants reached each step, in order. ``cpu``: seconds of CPU by
    side, all participants together."""

    n: int
    reached: Mapping[str, Sequence[float]]
    spans: Sequence[Span]
    cpu: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds until the last participant's return."""
        return max(self.reached["returned"])


@dataclass
class Traces:
    """All of one measurement."""

    environment: dict[str, object]
    runs: list[Trace] = field(default_factory=list)

    def of(self, n: int) -> list[Trace]:
        """The runs with N participants, the shortest first."""
        return sorted((trace for trace in self.runs if trace.n == n), key=lambda trace: trace.total)

    def sizes(self) -> list[int]:
        """The N that were measured."""
        return sorted({trace.n for trace in self.runs})

    @staticmethod
    def read(path: Path) -> Traces:
        """What `run` has written."""
        content = json.loads(path.read_text())
        runs = [
            Trace(run["n"], run["reached"], [Span(**span) for span in run["spans"]], run["cpu"])
            for run in content["runs"]
        ]
        return Traces(content["environment"], runs)


def run(out: Path, sizes: Sequence[int], runs: int) -> None:
    """Measure, and write the files into the folder ``out``."""
    from benchmarks.trace_plot import plot

    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "operator"
        with ControlPlane(stamps=stamps) as plane, start_zygote({TRACE_ENV: "1"}) as zygote:
            traces, backend = Traces(environment(plane.version)), K8s(plane, "trace")
            for _ in range(runs):
                for n in sizes:
                    traces.runs.append(_measure(zygote, backend, n, stamps))
                    print(f"trace n={n:<4} {traces.runs[-1].total:.3f} s", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "trace.json").write_text(json.dumps(asdict(traces), indent=1) + "\n")
    (out / "trace.md").write_text(table(traces))
    plot(traces, out / "trace.png")


def _measure(zygote: Zygote, backend: K8s, n: int, stamps: Path) -> Trace:
    processes = {"operator": backend.plane.operator_pid, **_control_plane()}
    with (
        tempfile.TemporaryDirectory() as logs,
        backend.session(n, n) as session,
        Crew(zygote, Path(logs)) as crew,
    ):
        participants = start_crew(crew, [session.seat(index) for index in range(n)])
        first = call_together(participants, n)
        if first.outcome != OK:
            raise RuntimeError(f"no first round of {n}: {first.detail}")
        session.settled()
        before = {name: _cpu(pid) for name, pid in processes.items()}
        at = in_time_for(participants)
        for participant in participants:
            participant.tell(Call(at))
        answers = collect(participants, JOIN_TIMEOUT_SECONDS)
        if len(answers.returned) < n:
            raise RuntimeError(f"no second round of {n}: {answers}")
        cpu = {name: _cpu(pid) - before[name] for name, pid in processes.items()}
    cpu["participants"] = sum(answer.cpu for answer in answers.returned)
    called = max(answer.called for answer in answers.returned)
    lines = [json.loads(line) for line in stamps.read_text().splitlines()]
    return trace_of(answers.returned, lines, called, cpu)


def trace_of(
    returned: Sequence[Returned],
    lines: Sequence[tuple[str, float, float]],
    called: float,
    cpu: Mapping[str, float],
) -> Trace:
    """Put together what participants and operator have noted; ``called`` is the last participant's call."""
    stamps = [{**answer.stamps, "returned": answer.returned} for answer in returned]
    reached = {step: sorted(one[step] - called for one in stamps if step in one) for step in STEPS}
    end = max(reached["returned"])
    spans = [
        Span(what, began - called, ended - called)
        for line, began, ended in lines
        if (what := _what(line)) and -_EARLIER_SECONDS < began - called < end
    ]
    return Trace(len(returned), reached, spans, cpu)


def _what(line: str) -> str:
    """What a line of the operator's tells, as far as it is shown."""
    if line == "plan":
        return line
    method, _, path = line.partition(" ")
    if method == "PATCH" and path.endswith("/status"):
        return STATUS
    if method == "PATCH" and path.endswith("-round"):
        return LEASE
    return EVENT if path.endswith("/events") else ""


def table(traces: Traces) -> str:
    """Medians in Markdown."""
    sizes = traces.sizes()
    rows = []
    for step in STEPS:
        rows.append([f"the last participant has {_PAST[step]}", *(_ms(traces, n, step) for n in sizes)])
    for what in (STATUS, LEASE):
        rows.append(
            [
                f"the operator has written the {what} for the last time",
                *(_last(traces, n, what) for n in sizes),
            ]
        )
    rows.append(["status writes", *(_count(traces, n, STATUS) for n in sizes)])
    for side in traces.runs[0].cpu:
        rows.append([f"CPU: {side}", *(_figure([one.cpu[side] for one in traces.of(n)]) for n in sizes)])
    return document(
        "A re-join, step by step",
        "Milliseconds, medians, from the last participant's call of `next_rendezvous`. N participants leave "
        "a round at the same moment. One process per participant, all on one machine with the API server.",
        facts(traces.environment),
        markdown_table(["", *(f"N = {n}" for n in sizes)], rows),
        "![what each side did when](trace.png)",
        "From a failure to the next step, of which this is a part: [breakdown](breakdown.md).",
    )


_PAST = {
    "announcing": "sent its announcement",
    "announced": "the answer to it",
    "woken": "seen the new round",
    "connected": "connected to the leader's store",
    "barrier passed": "passed the barrier",
    "returned": "returned",
}


def _figure(values: Sequence[float]) -> str:
    return f"{1000 * statistics.median(values):.0f}" if values else ""


def _ms(traces: Traces, n: int, step: str) -> str:
    return _figure([max(one.reached[step]) for one in traces.of(n) if one.reached[step]])


def _last(traces: Traces, n: int, what: str) -> str:
    """The write that the participants wait for: the last that was answered before all had seen the round."""
    found = []
    for one in traces.of(n):
        ended = [
            span.ended for span in one.spans if span.what == what and span.began < max(one.reached["woken"])
        ]
        found += [max(ended)] if ended else []
    return _figure(found)


def _count(traces: Traces, n: int, what: str) -> str:
    counts = [sum(span.what == what for span in one.spans) for one in traces.of(n)]
    return f"{statistics.median(counts):g}" if counts else ""


def _control_plane() -> dict[str, int]:
    """The process ids of etcd and the API server, which this process has started."""
    found: dict[str, int] = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = child.cmdline()[:2]
            found.update({name: child.pid for name in ("etcd", "kube-apiserver") if name in words})
    return found


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process's threads have had (Linux; ended threads are left out)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9
