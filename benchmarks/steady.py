"""What a job costs the API server while nothing happens: requests a second, counted in its audit log.

N participants are in a round and do nothing. All requests of their pods and of the operator count; a watch
that is opened again counts when it begins.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import markdown
from benchmarks.crew import start_zygote
from benchmarks.k8s import ControlPlane, K8s
from benchmarks.markdown import document, number
from benchmarks.measures import first_round
from benchmarks.results import OK, Outcome, Samples
from benchmarks.zygote import Zygote

SIZES = (8, 32, 128)
WINDOW_SECONDS = 120.0
"""Two renewals of every member: they come in bursts for a while after a start together."""
STEADY = "steady"


def run(out: Path, sizes: Sequence[int], runs: int, plane: ControlPlane) -> None:
    """Measure, and write `steady.json` and `steady.md` after every measurement."""
    samples = Samples({"apiserver": plane.version, "window seconds": WINDOW_SECONDS})
    session = K8s(plane)
    with start_zygote() as zygote:
        for n in sizes:
            for _ in range(runs):
                outcome = measure(zygote, session, n)
                samples.add(outcome.sample(STEADY, "k8s", n))
                rate = outcome.requests
                figure = (
                    outcome.outcome if rate is None else f"{rate:.3f} requests/s (target {target(n):.3f})"
                )
                print(f"{STEADY:18} n={n:<4} {'k8s':24} {figure} {outcome.detail}", flush=True)
                samples.write(out / "steady.json")
                (out / "steady.md").write_text(table(samples))


def target(n: int) -> float:
    """The target, requests a second: the leader's, one in ten seconds; each other member's, one a minute."""
    return 0.1 + n / 60


def measure(zygote: Zygote, backend: K8s, n: int) -> Outcome:
    """Requests a second of one job over the window; `seconds` is the window."""
    with first_round(zygote, backend.session(n, n), n) as (session, _, _, first):
        if first.outcome != OK:
            return first
        session.settled()
        began = time.time()
        time.sleep(WINDOW_SECONDS)
        seconds = time.time() - began
        requests = session.steady_requests(began, began + seconds)
        total = sum(requests.values())
        detail = ", ".join(f"{who} {count}" for who, count in sorted(requests.items()))
        return Outcome(seconds, requests=total / seconds, detail=detail)


def table(samples: Samples) -> str:
    """Requests a second beside the target."""
    rows = []
    for n in samples.sizes(STEADY):
        rows.append([str(n), number(samples.median(STEADY, n, "k8s", "requests")), number(target(n))])
    header = ["N", "requests/s, operator included", "target: 0.1 + N/60"]
    return document("Requests at the API server in steady state", markdown.table(header, rows))
