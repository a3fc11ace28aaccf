"""The runs behind the breakdown: real torchruns that stamp their steps, one of them killed.

Ours with a standby: the benchmark plays the pods, as everywhere in it, and reports the container's end right
after the kill. Ours with a replacement: an ElasticJob with a template on devcluster's nodes, so that the
operator makes the replacement's pod and the scheduler and a node start it. c10d, both: torchruns that the
benchmark starts. The bare start is torchrun alone. Where a worker is killed, its torchrun and its pod stay.
With warm workers, the kill comes when their interpreters are ready. Where one is killed and another comes
later, it is started when those that are left have made a step. Each variant takes its turn, run by run.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from benchmarks.backends import Backend, Seat, Session
from benchmarks.breakdown import (
    BARE,
    MEMORY,
    REPLACED,
    RETURN,
    STANDBY,
    WARM,
    WORKER,
    Agent,
    Breakdown,
    Memory,
    Run,
    Worker,
    pause,
)
from benchmarks.breakdown_table import table
from benchmarks.c10d import C10d
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane, K8s, K8sSession, audit_event
from benchmarks.pictures import plot_breakdown
from benchmarks.results import JOB_DIED, STORE_SHARING_OFF, TIMEOUT
from benchmarks.torchruns import (
    KILL_TIMEOUT_SECONDS,
    SCRIPT,
    START_TIMEOUT_SECONDS,
    TRACED,
    Torchruns,
    start,
    started_torchruns,
)
from devcluster.wait import wait_for
from elasticjob.contract import names
from elasticjob.contract.round_record import RoundRecord

SIZES = (2, 4)
RUNS = 3
AS_IT_SHIPS = "as it ships"
IN_ONE_POD = 8
"""Workers of a single torchrun, which are looked at beside those of N torchruns."""
MEMORY_OF = (1, 2, 8)
"""Workers of a torchrun whose memory is looked at, while it trains and while it stands by."""
_NAMESPACE = "bench"
_NODES = 2
_WARM_SECONDS = 150.0


class JobDied(Exception):
    """No torchrun is left. The text is the end of their logs."""


def measure(
    out: Path, sizes: Sequence[int] | None, runs: int | None, backends: Sequence[str], only: str = ""
) -> Breakdown:
    """Measure all variants in turns, or those whose name has ``only``; writes `breakdown.json`, `.md` and
    `.png` after every run."""
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(_NODES)) if "k8s" in backends else None
        ours = K8s(plane, STANDBY) if plane is not None else None
        breakdown = Breakdown(environment(plane.version if plane is not None else None))
        for n in sizes or SIZES:
            for run in range(runs or RUNS):
                for backend, variant, take in _variants(ours, n, backends, first=run == 0 and n == 2):
                    if only in variant:
                        _add(breakdown, backend, variant, n, take)
                        _write(breakdown, out)
                for backend, variant, twice in _returns(ours, n, backends) if n == 2 else ():
                    if only in variant:
                        _add_pauses(breakdown, backend, variant, n, twice)
                        _write(breakdown, out)
        if ours is not None and only in MEMORY:
            for workers in MEMORY_OF:
                for warm in (False, True):
                    _weigh(breakdown, ours, workers, warm=warm)
                    _write(breakdown, out)
        for _ in range(runs or RUNS):
            for backend, variant, take in _one_pod(ours, backends):
                if only in variant:
                    _add(breakdown, backend, variant, IN_ONE_POD, take)
                    _write(breakdown, out)
    return breakdown


Take = Callable[[], Run]


def _variants(
    ours: K8s | None, n: int, backends: Sequence[str], *, first: bool
) -> Iterator[tuple[str, str, Take]]:
    """One turn. c10d as it ships is tried once: its job dies after more than a minute."""
    if ours is not None:
        yield "k8s", STANDBY, lambda: _standby_of_ours(ours, n)
        yield "k8s", REPLACED, lambda: _pods(ours.plane, n)
        if n == 2:
            yield "k8s", STANDBY + WARM, lambda: _standby_of_ours(ours, n, warm=True)
            yield "k8s", REPLACED + WARM, lambda: _pods(ours.plane, n, warm=True)
            yield "k8s", WORKER, lambda: _worker_killed(ours, n, 1)
            yield "k8s", WORKER + WARM, lambda: _worker_killed(ours, n, 1, warm=True)
    if "c10d" in backends:
        if n == 2:
            yield "c10d", WORKER, lambda: _worker_killed(C10d(STORE_SHARING_OFF), n, 1)
        yield "c10d", STANDBY, lambda: _c10d(STORE_SHARING_OFF, n, standby=True)
        yield "c10d", REPLACED, lambda: _c10d(STORE_SHARING_OFF, n, standby=False)
        if first:
            yield "c10d", AS_IT_SHIPS, lambda: _c10d("", n, standby=False)
    yield "", BARE, lambda: _bare(n)


def _one_pod(ours: K8s | None, backends: Sequence[str]) -> Iterator[tuple[str, str, Take]]:
    if ours is not None:
        yield "k8s", WORKER, lambda: _worker_killed(ours, 1, IN_ONE_POD)
        yield "k8s", WORKER + WARM, lambda: _worker_killed(ours, 1, IN_ONE_POD, warm=True)
    if "c10d" in backends:
        yield "c10d", WORKER, lambda: _worker_killed(C10d(STORE_SHARING_OFF), 1, IN_ONE_POD)


Twice = Callable[[], tuple[float, float, float]]


def _returns(ours: K8s | None, n: int, backends: Sequence[str]) -> Iterator[tuple[str, str, Twice]]:
    if ours is not None:
        yield "k8s", RETURN, lambda: _shrink_and_return(ours, n)
        yield "k8s", RETURN + WARM, lambda: _shrink_and_return(ours, n, warm=True)
    if "c10d" in backends:
        yield "c10d", RETURN, lambda: _shrink_and_return(C10d(STORE_SHARING_OFF), n)


def _weigh(breakdown: Breakdown, ours: K8s, workers: int, *, warm: bool) -> None:
    """What a torchrun of ``workers`` and one that stands by share with no other process."""
    with started_torchruns(traced=True) as torchruns, ours.session(1, 1, extra=1) as session:
        start(torchruns, seat_of(session, 0, warm=warm), 0, workers)
        _await_run(torchruns, 0.0, workers, time.monotonic() + START_TIMEOUT_SECONDS)
        start(torchruns, seat_of(session, 1, warm=warm), 1, workers)
        await_call(torchruns.folder, "1")
        session.settled()
        if warm:
            await_warm([torchruns.folder / f"{index}.log" for index in range(2)])
        trains, stands_by = (torchruns.private_bytes(str(index)) / 2**20 for index in range(2))
    breakdown.memory.append(Memory(workers, warm, trains, stands_by))
    print(f"{MEMORY}, {breakdown.memory[-1]}", flush=True)


def _add_pauses(breakdown: Breakdown, backend: str, variant: str, n: int, take: Twice) -> None:
    row = breakdown.pauses_of(backend, variant, n)
    try:
        shrunk, grown, came = take()
    except (JobDied, TimeoutError) as error:
        row.outcomes.append(JOB_DIED if isinstance(error, JobDied) else TIMEOUT)
        print(f"    {str(error).strip()[-600:]}", file=sys.stderr, flush=True)
        print(f"{row.name:20} n={n} {row.outcomes[-1]}", flush=True)
        return
    row.add(shrunk, grown, came)
    figures = f"goes on {shrunk:.3f} s, grows again {grown:.3f} s, until it trains {came:.1f} s"
    print(f"{row.name:20} n={n} {figures}", flush=True)


def _add(breakdown: Breakdown, backend: str, variant: str, n: int, take: Take) -> None:
    bar = breakdown.bar(backend, variant, n)
    try:
        run = take()
        bar.add(run)
    except JobDied as died:
        bar.outcomes.append(JOB_DIED)
        print(f"    {str(died).strip()[-600:]}", file=sys.stderr, flush=True)
    except TimeoutError as error:
        bar.outcomes.append(TIMEOUT)
        print(f"    {error}", file=sys.stderr, flush=True)
    else:
        phases = ", ".join(f"{name} {seconds:.3f}" for name, seconds in bar.phases[-1].items() if seconds)
        print(f"{bar.name:20} n={n} {sum(bar.phases[-1].values()):6.3f} s: {phases}", flush=True)
        return
    print(f"{bar.name:20} n={n} {bar.outcomes[-1]}", flush=True)


def _write(breakdown: Breakdown, out: Path) -> None:
    breakdown.write(out / "breakdown.json")
    (out / "breakdown.md").write_text(table(breakdown))
    plot_breakdown(breakdown, out / "breakdown.png")


# -- torchruns that the benchmark starts -------------------------------------------------------------------


def _bare(n: int) -> Run:
    with started_torchruns(traced=True) as torchruns:
        began = time.monotonic()
        torchruns.start("0", ["--standalone", f"--nproc-per-node={n}"], {})
        return _await_run(torchruns, began, n, began + START_TIMEOUT_SECONDS)


def _c10d(variant: str, n: int, *, standby: bool) -> Run:
    with started_torchruns(traced=True) as torchruns, C10d(variant).session(n, n, extra=1) as session:
        for index in range(n):
            start(torchruns, session.seat(index), index)
        _await_run(torchruns, 0.0, n, time.monotonic() + START_TIMEOUT_SECONDS)
        if standby:
            start(torchruns, session.seat(n), n)
            await_call(torchruns.folder, str(n))
        session.settled()
        killed = torchruns.kill(str(n - 1))
        if not standby:
            start(torchruns, session.seat(n), n)
        return _await_run(torchruns, killed, n, killed + KILL_TIMEOUT_SECONDS)


def _standby_of_ours(ours: K8s, n: int, *, warm: bool = False) -> Run:
    with started_torchruns(traced=True) as torchruns, ours.session(n, n, extra=1) as session:
        for index in range(n):
            start(torchruns, seat_of(session, index, warm=warm), index)
        _await_run(torchruns, 0.0, n, time.monotonic() + START_TIMEOUT_SECONDS)
        start(torchruns, seat_of(session, n, warm=warm), n)
        await_call(torchruns.folder, str(n))
        session.settled()
        if warm:
            await_warm([torchruns.folder / f"{index}.log" for index in range(n + 1)])
        marks = _Marks(ours.plane, session.job)
        killed = torchruns.kill(str(n - 1))
        session.lost(n - 1)
        run = _await_run(torchruns, killed, n, killed + KILL_TIMEOUT_SECONDS)
        return marks.of(run, session.pod(n - 1))


def _worker_killed(backend: Backend, n: int, workers: int, *, warm: bool = False) -> Run:
    """Kill one worker of N torchruns, which have this many each; the torchruns and their pods stay."""
    with started_torchruns(traced=True) as torchruns, backend.session(n, n) as session:
        for index in range(n):
            start(torchruns, seat_of(session, index, warm=warm), index, workers)
        _await_run(torchruns, 0.0, n * workers, time.monotonic() + START_TIMEOUT_SECONDS)
        session.settled()
        if warm:
            await_warm([torchruns.folder / f"{index}.log" for index in range(n)])
        memory = sum(torchruns.private_bytes(str(index)) for index in range(n)) / n / 2**20
        marks = None
        if isinstance(backend, K8s) and isinstance(session, K8sSession):
            marks = _Marks(backend.plane, session.job)
        killed = torchruns.kill_worker(str(n - 1))
        run = _await_run(torchruns, killed, n * workers, killed + KILL_TIMEOUT_SECONDS)
        return replace(run if marks is None else marks.of(run, ""), memory=memory)


def _shrink_and_return(backend: K8s | C10d, n: int, *, warm: bool = False) -> tuple[float, float, float]:
    """Seconds from the kill to the next step of N - 1; their pause when another torchrun has come;
    and the time from its start."""
    if isinstance(backend, K8s):
        at_once = {"rendezvous": {"lastCallTimeoutSeconds": 0}, "scaling": {"scaleUpDelaySeconds": 0}}
        session_of: contextlib.AbstractContextManager[Session] = backend.session(n, n - 1, 1, at_once)
    else:
        session_of = backend.session(n, n - 1, 1)
    with started_torchruns(traced=True) as torchruns, session_of as session:
        for index in range(n):
            start(torchruns, seat_of(session, index, warm=warm), index)
        _await_run(torchruns, 0.0, n, time.monotonic() + START_TIMEOUT_SECONDS)
        session.settled()
        if warm:
            await_warm([torchruns.folder / f"{index}.log" for index in range(n)])
        killed = torchruns.kill(str(n - 1))
        session.lost(n - 1)
        smaller = _await_run(torchruns, killed, n - 1, killed + KILL_TIMEOUT_SECONDS)
        began = time.monotonic()
        start(torchruns, seat_of(session, n, warm=warm), n)
        larger = _await_run(torchruns, began, n, began + KILL_TIMEOUT_SECONDS)
        grown = pause(larger.agents, n - 1, n, began)
        assert grown is not None
        return smaller.until(), grown, larger.until()


def seat_of(session: Session, index: int, *, warm: bool) -> Seat:
    """The place of a torchrun, with warm workers on or off."""
    seat = session.seat(index)
    return replace(seat, config={**seat.config, "warm": "on"}) if warm else seat


def await_warm(logs: Sequence[Path]) -> None:
    """Wait until each torchrun has said that its interpreters are ready, and has used none of them since."""
    wait_for(lambda: all(has_warm(log) for log in logs), _WARM_SECONDS, "the interpreters are ready")


def has_warm(log: Path) -> bool:
    """Whether a torchrun's log says that its interpreters are ready, and that none was used since."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.rfind("warm workers: ready") > max(text.rfind(" starts warm"), text.rfind(" starts cold"))


def _await_run(torchruns: Torchruns, since: float, n: int, deadline: float) -> Run:
    """Wait for the first step of N workers that were started after ``since``. Raises JobDied."""
    while True:
        run = Run(since, n, read_agents(torchruns.folder))
        if run.trains():
            return run
        if torchruns.all_ended():
            raise JobDied(torchruns.log())
        if time.monotonic() > deadline:
            raise TimeoutError(f"no first step of {n} workers\n{torchruns.log()}")
        time.sleep(0.05)


def await_call(folder: Path, agent: str) -> None:
    """Wait until a standby has called ``next_rendezvous``."""
    file = folder / f"{agent}.agent"
    wait_for(
        lambda: file.exists() and "called" in file.read_text(), START_TIMEOUT_SECONDS, "the standby's call"
    )


# -- pods that the operator makes --------------------------------------------------------------------------


def _pods(plane: ControlPlane, n: int, *, warm: bool = False) -> Run:
    """N pods of a template, the last of them killed: the operator replaces it."""
    with tempfile.TemporaryDirectory() as name, _job(plane, n, Path(name), warm=warm) as session:
        folder = Path(name)

        def trained(since: float) -> Run | None:
            run = Run(since, n, read_agents(folder))
            return run if run.trains() else None

        wait_for(lambda: trained(0.0), START_TIMEOUT_SECONDS, "the first round's first step")
        session.settled()
        if warm:
            pods = [names.pod_name(session.job, slot, 0) for slot in range(n)]
            await_warm([plane.cluster.nodes.logs_path(_NAMESPACE, pod) for pod in pods])
        victim = names.pod_name(session.job, n - 1, 0)
        marks = _Marks(plane, session.job)
        killed = time.monotonic()
        plane.cluster.nodes.kill_container(_NAMESPACE, victim, signal=signal.SIGKILL)
        run = wait_for(lambda: trained(killed), KILL_TIMEOUT_SECONDS, "the next round's first step")
        return marks.of(run, victim, names.pod_name(session.job, n - 1, 1))


@contextlib.contextmanager
def _job(plane: ControlPlane, n: int, folder: Path, *, warm: bool) -> Iterator[K8sSession]:
    """An ElasticJob with a template, gone with its pods at the end."""
    environment = [
        {"name": "BENCH_STAMPS", "value": str(folder)},
        *([{"name": "PET_RDZV_CONF", "value": "warm=on"}] if warm else []),
        {"name": "BENCH_AGENT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    session = K8sSession(plane, f"pods-{n}-{time.monotonic_ns() % 1_000_000}", n, n, 0)
    with session.trains(
        [sys.executable, str(TRACED), str(SCRIPT)], environment, {"terminationGracePeriodSeconds": 35}
    ):
        yield session


# -- what the cluster knew and when ------------------------------------------------------------------------


class _Marks:
    """What the API server's audit log says of a run: when each write that counts was answered."""

    def __init__(self, plane: ControlPlane, job: str) -> None:
        self._plane = plane
        self._lease = names.round_lease(job)
        self._offset = plane.audit_log.stat().st_size
        self._round = self._record().number

    def of(self, run: Run, victim: str, replacement: str = "") -> Run:
        """The run with its marks; the round Lease's first write after the kill says Broken."""
        writes = (
            ("reported", ("pods", victim, "status"), ("patch", "update")),
            ("broken", ("leases", self._lease, ""), ("patch", "update")),
            ("pod", ("pods", replacement, ""), ("create",)),
        )
        marks = {}
        for name, thing, verbs in writes:
            at = self._answered(run.killed, thing, verbs)
            if at is not None:
                marks[name] = at
        if self._record().number <= self._round:
            raise RuntimeError(
                f"Lease {self._lease}: still round {self._round} after the first step of the next"
            )
        return Run(run.killed, run.world_size, run.agents, marks)

    def _record(self) -> RoundRecord:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{_NAMESPACE}/leases/{self._lease}"
        lease = self._plane.api.request("GET", path).json()
        return RoundRecord.parse(lease["metadata"]["annotations"][names.ROUND_ANNOTATION])

    def _answered(self, since: float, thing: tuple[str, str, str], verbs: Sequence[str]) -> float | None:
        """When the first such request for (resource, name, subresource) was answered well, monotonic."""
        monotonic = time.monotonic() - time.time()
        with self._plane.audit_log.open() as log:
            log.seek(self._offset)
            for line in log:
                event = audit_event(line)
                if event is None or event["stage"] != "ResponseComplete" or event["verb"] not in verbs:
                    continue
                ref = event.get("objectRef", {})
                if tuple(ref.get(key, "") for key in ("resource", "name", "subresource")) != thing:
                    continue
                at = _seconds(event["stageTimestamp"]) + monotonic
                if event["responseStatus"]["code"] < 300 and at >= since:
                    return at
        return None


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


# -- stamps ------------------------------------------------------------------------------------------------


def read_agents(folder: Path) -> list[Agent]:
    """What all torchruns and workers have stamped into a folder, in the order in which they began."""
    agents = [
        Agent(_pairs(path), [_worker(one) for one in sorted(folder.glob(f"{path.stem}.*[0-9]"))])
        for path in folder.glob("*.agent")
    ]
    return sorted((agent for agent in agents if agent.stamps), key=lambda agent: agent.stamps[0][1])


def _worker(path: Path) -> Worker:
    pairs = _pairs(path)
    named = dict(pairs)
    steps = [(float(name), int(size)) for name, size in pairs if name[0].isdigit()]
    return Worker(named.get("started", 0.0), named.get("imported", 0.0), steps)


def _pairs(path: Path) -> list[tuple[str, float]]:
    """The lines of a file that are whole: two words each."""
    whole, _, _ = path.read_text().rpartition("\n")
    return [(name, float(value)) for name, value in (line.split() for line in whole.splitlines())]
