"""A loss that only heartbeats show: no collective fails, and no pod's status is updated.

* dead agent: SIGKILL of one of N. Its port refuses connections; no status says that its container has ended.
* silent node: the path to one of N loses everything, both ways, its way to the API server included.

Seconds are from the fault until the last survivor learns from `num_nodes_waiting()`, asked as torchrun does,
that the round is over. The timeouts are the defaults. c10d gets the same, and a minute.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import cable, markdown
from benchmarks.backends import Backend, Seat
from benchmarks.crew import Answers, Crew, collect, start_zygote
from benchmarks.markdown import document, spread
from benchmarks.measures import call_together, start_crew
from benchmarks.participant import CallOnNotice
from benchmarks.results import JOB_DIED, OK, Outcome, Samples
from benchmarks.table import column_name
from benchmarks.zygote import Zygote
from devcluster.proxy import TcpProxy

SIZES = (2, 8)
RUNS = 3
DEAD_AGENT, SILENT_NODE = "dead_agent", "silent_node"
LIMIT_SECONDS = 60.0
NOT_NOTICED = f"not within {LIMIT_SECONDS:.0f} s"
NEEDS_ROOT = "needs root"


def run(
    out: Path,
    sizes: Sequence[int],
    runs: int,
    backends: Mapping[str, Backend],
    versions: Mapping[str, object],
) -> None:
    """Measure, and write `noticing.json` and `noticing.md` after every measurement.

    c10d, which goes on for the whole minute each time, is measured once.
    """
    samples = Samples(versions)
    faults: dict[str, Callable[[Zygote, Backend, int], Outcome]] = {
        DEAD_AGENT: dead_agent,
        SILENT_NODE: silent_node,
    }
    with start_zygote() as zygote:
        for what, measure in faults.items():
            for n in sizes:
                for name, backend in backends.items():
                    for _ in range(1 if name == "c10d" else runs):
                        outcome = measure(zygote, backend, n)
                        samples.add(outcome.sample(what, name, n))
                        figure = outcome.outcome if outcome.seconds is None else f"{outcome.seconds:.2f} s"
                        print(f"{what:18} n={n:<4} {name:24} {figure} {outcome.detail}", flush=True)
                        samples.write(out / "noticing.json")
                        (out / "noticing.md").write_text(table(samples))


def table(samples: Samples) -> str:
    """Medians and spread, and the goal."""
    goals = {
        DEAD_AGENT: ("dead agent: SIGKILL, nobody updates its pod's status", "3 s"),
        SILENT_NODE: ("silent node: all packets lost", "heartbeatTimeoutSeconds (10) + 1 s"),
    }
    rows = []
    for what, (title, goal) in goals.items():
        for n in samples.sizes(what):
            cells = [spread(samples.summary(what, n, backend)) for backend in ("k8s", "c10d")]
            rows.append([title, str(n), *cells, goal])
    header = ["what", "N", column_name("k8s", ""), column_name("c10d", ""), "target"]
    return document(
        "Noticing a loss that nobody's collective notices",
        "Seconds from the fault until the last survivor knows that the round is over: median (minimum to "
        "maximum).",
        markdown.table(header, rows),
    )


def dead_agent(zygote: Zygote, backend: Backend, n: int) -> Outcome:
    """SIGKILL of one of N."""
    return _notice(zygote, backend, n, None)


def silent_node(zygote: Zygote, backend: Backend, n: int) -> Outcome:
    """One of N is cut off."""
    if not cable.available():
        return Outcome(None, NEEDS_ROOT, "network namespaces need root, ip and nsenter")
    with cable.Cable() as wire:
        return _notice(zygote, backend, n, wire)


def _notice(zygote: Zygote, backend: Backend, n: int, wire: cable.Cable | None) -> Outcome:
    """The last participant dies or, if it is on a wire, falls silent."""
    with (
        tempfile.TemporaryDirectory() as logs,
        backend.session(n, n - 1) as session,
        Crew(zygote, Path(logs)) as crew,
        contextlib.ExitStack() as stack,
    ):
        seats = [session.seat(index) for index in range(n)]
        if wire is not None:
            near = [_near(seat) for seat in seats[:-1]]
            seats = [*near, stack.enter_context(_far(seats[-1], wire))]
        *survivors, victim = participants = start_crew(crew, seats)
        first = call_together(participants, n)
        if first.outcome != OK:
            return first
        session.settled()
        for survivor in survivors:
            survivor.tell(CallOnNotice())
        fault = time.monotonic()
        if wire is None:
            victim.kill()
        else:
            wire.cut()
        return _judge(collect(survivors, LIMIT_SECONDS), fault)


def _judge(answers: Answers, fault: float) -> Outcome:
    if answers.raised:
        return Outcome(None, JOB_DIED, answers.raised[0].error)
    if answers.missing:
        return Outcome(None, NOT_NOTICED, f"{answers.missing} survivors go on as if nothing had happened")
    return Outcome(max(answer.called for answer in answers.returned) - fault)


def _near(seat: Seat) -> Seat:
    """A seat on this machine, at the address that the far end can reach."""
    return replace(seat, endpoint=_reachable(seat), local_addr=cable.NEAR)


@contextlib.contextmanager
def _far(seat: Seat, wire: cable.Cable) -> Iterator[Seat]:
    """A seat in the namespace at the far end; the API server, if there is one, is relayed to the near end."""
    environment = {**seat.environment, cable.NAMESPACE_ENV: wire.path}
    with contextlib.ExitStack() as stack:
        if "KUBERNETES_SERVICE_HOST" in environment:
            url = urlsplit(
                f"//{environment['KUBERNETES_SERVICE_HOST']}:{environment['KUBERNETES_SERVICE_PORT']}"
            )
            relay = stack.enter_context(TcpProxy((str(url.hostname), int(url.port or 443)), cable.NEAR))
            environment |= {
                "KUBERNETES_SERVICE_HOST": relay.host,
                "KUBERNETES_SERVICE_PORT": str(relay.port),
            }
        yield replace(seat, endpoint=_reachable(seat), local_addr=cable.FAR, environment=environment)


def _reachable(seat: Seat) -> str:
    """An endpoint that is an address of this machine, as the far end reaches it."""
    return seat.endpoint.replace("127.0.0.1:", f"{cable.NEAR}:")
