"""Rounds without an operator beside operator mode and c10d: ``python -m benchmarks.peers``.

One run makes the whole table: first join, re-join, kill -9 of a member, of the coordinator, of both it and
rank 0, requests of the participants for each round, requests a minute while nothing happens. ``peers`` is
measured twice: with the right on Leases alone, and with that on pods, too. The pods are those of
`benchmarks.k8s`: Pod objects, in whose status the benchmark writes the end of a container at once.

In operator mode no participant coordinates, and in c10d the host of the store cannot be lost: there "the
coordinator" and "both" are not measured. c10d has store sharing off, as otherwise nothing can be replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import arguments, markdown, measures, peer_limits, quiet
from benchmarks.backends import Backend, Seat
from benchmarks.c10d import C10d
from benchmarks.crew import CrewError, Participant, collect, start_zygote
from benchmarks.environment import environment
from benchmarks.k8s import LEASES, RBAC, ControlPlane, K8s, K8sSession, done
from benchmarks.measures import REFORM_TIMEOUT_SECONDS, first_round, judge, tell_survivors
from benchmarks.peer_limits import COORDINATOR, LEASES_ALONE, PEERS, WITH_PODS
from benchmarks.plan import JOIN, REJOIN, SHRINK, STEADY
from benchmarks.results import JOB_DIED, OK, STORE_SHARING_OFF, TIMEOUT, Outcome, Samples
from benchmarks.zygote import Zygote
from elasticjob.contract import names
from elasticjob.contract.fields import RecordError
from elasticjob.contract.reports import RoundReport
from elasticjob.peers.round_lease import Identity
from elasticjob.peers.run import RUN_LABEL, STATE_ANNOTATION, round_lease
from elasticjob.peers.settled import Settled

RESULTS = Path(__file__).parent / "results"
SIZES = (2, 8, 32, 128)
RUNS = 5
WINDOW_SECONDS = 60.0
BOTH = "both"
WHATS = (JOIN, REJOIN, SHRINK, COORDINATOR, BOTH, STEADY)
_MERGE_PATCH = "application/merge-patch+json"
_SECONDS = 60.0
_RULES = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
]
_ROLE = "torchrun-peers"


class PeerSession(K8sSession):
    """One run without operator, and its pods."""

    def open(self, spec: Mapping[str, object]) -> None:
        """Create the pods; there is no job."""
        del spec
        self._run = uuid.uuid4().hex
        self.make_pods(RUN_LABEL)

    def seat(self, index: int) -> Seat:
        """As that of an ElasticJob's pod, with the command line of a run."""
        seat = super().seat(index)
        config = {"rounds": "peers", "last_call_timeout": "5"}
        slot = {"JOB_COMPLETION_INDEX": str(index)}
        return dataclasses.replace(
            seat,
            run_id=self._run,
            min_nodes=self._minimum,
            local_addr="127.0.0.1",
            config=config,
            environment={**seat.environment, **slot},
        )

    def close(self) -> None:
        """Pods and Leases."""
        self.delete_pods(RUN_LABEL)

    def processes(self) -> Mapping[str, int]:
        """No other works for this run."""
        return {}

    def coordinator(self) -> int:
        """The seat of the participant that coordinates. Raises ValueError if it is none of the run's."""
        lease = self._api.request("GET", f"{LEASES}/{round_lease(self.job)}").json()
        return self._pods.index(Identity.parse(lease["spec"].get("holderIdentity") or "").pod)

    def leader(self) -> int:
        """The seat of rank 0."""
        settled = self._settled()
        leader = settled.state.leader if settled is not None else None
        assert leader is not None, "there is no round"
        return self._pods.index(leader.name)

    def _settled(self) -> Settled | None:
        answer = self._api.request("GET", f"{LEASES}/{round_lease(self.job)}")
        found = answer.json()["metadata"].get("annotations", {}) if answer.ok else {}
        try:
            return Settled.parse(found.get(names.ROUND_ANNOTATION, ""), found.get(STATE_ANNOTATION, ""))
        except RecordError:
            return None

    def _established(self) -> bool:
        settled = self._settled()
        if settled is None or not settled.state.active or settled.state.leader is None:
            return False
        answer = self._api.request("GET", f"{LEASES}/{settled.state.leader.name}")
        found = answer.json()["metadata"].get("annotations", {}) if answer.ok else {}
        try:
            report = RoundReport.parse(found.get(names.REPORT_ANNOTATION, ""))
        except RecordError:
            return False
        return report.nonce == settled.state.nonce and report.established


class Peers:
    """The backend, with one of the two sets of rights."""

    name = PEERS

    def __init__(self, plane: ControlPlane, variant: str) -> None:
        self.variant = variant
        self.plane = plane
        self._sessions = 0

    @contextlib.contextmanager
    def session(self, n: int, minimum: int, extra: int = 0) -> Iterator[PeerSession]:
        """A new run. The role is the account's, so that sessions follow each other."""
        grant(self.plane, _RULES if self.variant == WITH_PODS else _RULES[:1])
        self._sessions += 1
        which = "pods" if self.variant == WITH_PODS else "leases"
        session = PeerSession(self.plane, f"bench-{which}-{self._sessions}", n, minimum, extra)
        try:
            session.open({})
            yield session
        finally:
            session.close()


def grant(plane: ControlPlane, rules: Sequence[Mapping[str, object]]) -> None:
    """What the namespace's admin grants to its pods. Other backends' sessions must not have it."""
    api = plane.api
    role = {"metadata": {"name": _ROLE}, "rules": rules}
    binding = {
        "metadata": {"name": _ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": "default"}],
    }
    if api.is_ok(f"{RBAC}/roles/{_ROLE}"):
        done(api.request("PATCH", f"{RBAC}/roles/{_ROLE}", {"rules": rules}, content_type=_MERGE_PATCH))
    else:
        done(api.request("POST", f"{RBAC}/roles", role))
        done(api.request("POST", f"{RBAC}/rolebindings", binding))
    time.sleep(1.0)  # the authorizer's cache


def kill(zygote: Zygote, backend: Peers, n: int, what: str) -> Outcome:
    """kill -9 of one or two of N where the rest suffices: a member that does not coordinate, the coordinator,
    or it and rank 0 (or another, if it is that)."""
    lost = 2 if what == BOTH else 1
    if n <= lost:
        return Outcome(None, detail=f"{n} participants are too few", outcome=NOT_MEASURED)
    with first_round(zygote, backend.session(n, n - lost), n) as (session, _, participants, first):
        if first.outcome != OK:
            return first
        session.settled()
        victims = _victims(session, n, what)
        return _kill_these(session, participants, victims)


NOT_MEASURED = "not measured"


def _victims(session: PeerSession, n: int, what: str) -> list[int]:
    coordinator, leader = session.coordinator(), session.leader()
    if what == SHRINK:
        others = [i for i in range(n) if i not in (coordinator, leader)]
        return [others[-1] if others else next(i for i in range(n) if i != coordinator)]
    if what == COORDINATOR:
        return [coordinator]
    return [coordinator, leader if leader != coordinator else next(i for i in range(n) if i != leader)]


def _kill_these(session: PeerSession, participants: list[Participant], victims: list[int]) -> Outcome:
    survivors = [one for index, one in enumerate(participants) if index not in victims]
    at = tell_survivors(session, participants, survivors)
    time.sleep(max(0.0, at - time.monotonic()))
    killed = time.monotonic()
    for index in victims:
        participants[index].kill()
    for index in victims:
        session.lost(index)
    return judge(collect(survivors, REFORM_TIMEOUT_SECONDS), killed, len(survivors))


def counted(
    zygote: Zygote, backend: Backend, n: int, whats: Sequence[str], window: float
) -> dict[str, Outcome]:
    """Join, re-join and the time after it in one session, with the requests of each."""
    found: dict[str, Outcome] = {}
    began = time.time()
    with first_round(zygote, backend.session(n, n), n) as (session, _, participants, first):
        requests = session.requests(began) if first.outcome == OK else None
        found[JOIN] = dataclasses.replace(first, requests=None if requests is None else requests / n)
        if first.outcome != OK:
            return found
        session.settled()
        if REJOIN in whats:
            since = time.time()
            second = measures.call_together(participants, n)
            requests = session.requests(since) if second.outcome == OK else None
            found[REJOIN] = dataclasses.replace(second, requests=None if requests is None else requests / n)
            if second.outcome != OK:
                return found
        if STEADY in whats and isinstance(session, K8sSession):
            session.settled()
            found[STEADY] = _steady(session, n, window)
    return {what: outcome for what, outcome in found.items() if what in whats}


def _steady(session: K8sSession, n: int, window: float) -> Outcome:
    """Requests of the pods, each minute and for each of them."""
    began = time.time()
    time.sleep(window)
    seconds = time.time() - began
    pods = session.steady_requests(began, began + seconds)["pods"]
    return Outcome(seconds, requests=pods / n * 60 / seconds)


def run(
    out: Path, whats: Sequence[str], sizes: Sequence[int], runs: int, window: float, busy: bool = False
) -> str:
    """Measure in turns, and write `peers.json` and `peers.md` after every measurement."""
    with ControlPlane() as plane, start_zygote() as zygote:
        samples = Samples({**environment(plane.version), **({"a busy machine": True} if busy else {})})
        peers = [Peers(plane, variant) for variant in (LEASES_ALONE, WITH_PODS)]
        all_backends: list[Backend] = [*peers, K8s(plane), C10d(STORE_SHARING_OFF)]
        text = ""
        for n in sizes:
            for _ in range(runs):
                for backend in all_backends:
                    if not isinstance(backend, Peers):
                        grant(plane, [])
                    for what, outcome in _one(zygote, backend, n, whats, window):
                        samples.add(outcome.sample(what, backend.name, n, backend.variant))
                        _say(what, n, backend, outcome)
                    samples.write(out / "peers.json")
                    text = table(samples)
                    (out / "peers.md").write_text(text)
        return text


def _one(
    zygote: Zygote, backend: Backend, n: int, whats: Sequence[str], window: float
) -> Iterator[tuple[str, Outcome]]:
    """All measurements of one backend; one that can't be made says why."""
    if first := [what for what in (JOIN, REJOIN, STEADY) if what in whats]:
        found = _tried(lambda: counted(zygote, backend, n, first, window), first)
        yield from found.items()
    for what in (SHRINK, COORDINATOR, BOTH):
        if what in whats and isinstance(backend, Peers):
            one = _tried(lambda what=what: {what: kill(zygote, backend, n, what)}, [what])  # type: ignore[misc]
            yield from ((what, o) for what, o in one.items() if o.outcome != NOT_MEASURED)
        elif what in whats and what == SHRINK:
            yield from _tried(lambda: {SHRINK: measures.shrink(zygote, backend, n)}, [what]).items()


def _tried(measure: Callable[[], dict[str, Outcome]], whats: Sequence[str]) -> dict[str, Outcome]:
    try:
        return measure()
    except (CrewError, TimeoutError) as error:
        how = TIMEOUT if isinstance(error, TimeoutError) else JOB_DIED
        return {what: Outcome(None, how, str(error)) for what in whats}


_TITLES = {
    JOIN: "first join, s",
    REJOIN: "re-join, s",
    SHRINK: "kill -9 of a member, s",
    COORDINATOR: "kill -9 of the coordinator, s",
    BOTH: "kill -9 of the coordinator and of rank 0, s",
}
_COUNTS = {
    JOIN: "requests for each participant, first join",
    REJOIN: "requests for each participant, re-join",
    STEADY: "requests a minute for each participant, while nothing happens",
}


def table(samples: Samples) -> str:
    """Each figure in a row for each N, each backend in a column; and which limits are met."""
    backends = samples.backends()
    header = ["", "N", *(f"{name}, {variant}" if variant else name for name, variant in backends)]
    rows = []
    for what, title in _TITLES.items():
        for n in samples.sizes(what):
            found = [samples.summary(what, n, *backend) for backend in backends]
            rows.append([title, str(n), *(markdown.spread(one) if one is not None else "-" for one in found)])
    for what, title in _COUNTS.items():
        for n in samples.sizes(what):
            cells = [_requests(samples, what, n, *backend) for backend in backends]
            rows.append([title, str(n), *cells])
    return markdown.document(
        "Rounds without an operator, beside operator mode and c10d",
        markdown.facts(samples.environment),
        "Seconds: median (least to most), from the last call or the kill to the last return of "
        "`next_rendezvous`. After a kill the others go on without the lost. Requests are those of the "
        "participants at the API server, watches included; the operator's own are not counted.",
        markdown.table(header, rows),
        peer_limits.table(samples),
    )


def _requests(samples: Samples, what: str, n: int, backend: str, variant: str) -> str:
    found = [one.figure("requests") for one in samples.of(what, n, backend, variant)]
    good = sorted(one for one in found if one is not None)
    return markdown.number(good[len(good) // 2]) if good else "-"


def _say(what: str, n: int, backend: Backend, outcome: Outcome) -> None:
    figure = f"{outcome.seconds:.3f} s" if outcome.seconds is not None else outcome.outcome
    requests = f", {outcome.requests:.2f} requests each" if outcome.requests is not None else ""
    print(f"{what:12} n={n:<4} {f'{backend.name} {backend.variant}':30} {figure}{requests}", flush=True)
    if outcome.outcome != OK and outcome.detail:
        print(f"    {outcome.detail.strip().splitlines()[-1][:300]}", file=sys.stderr, flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--what", type=arguments.words(WHATS), default=WHATS, help=f"of {','.join(WHATS)}; default: all"
    )
    parser.add_argument(
        "--n", type=arguments.sizes, default=SIZES, help=f"participants, default {','.join(map(str, SIZES))}"
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="how often, default %(default)s")
    parser.add_argument(
        "--window",
        type=float,
        default=WINDOW_SECONDS,
        help="seconds of the steady state, default %(default)s",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    quiet.add_argument(parser)
    options = parser.parse_args()
    quiet.refuse_if_busy(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"\n{run(options.out, options.what, options.n, options.runs, options.window, options.busy)}")


if __name__ == "__main__":
    main()
