"""The limits that rounds without an operator are held to, beside what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import markdown
from benchmarks.plan import REJOIN, SHRINK
from benchmarks.results import Samples

PEERS, LEASES_ALONE, WITH_PODS = "peers", "Leases alone", "with the right on pods"
OPERATOR = "k8s"
COORDINATOR = "coordinator"
N = 8
KILL_SECONDS = {WITH_PODS: 0.3, LEASES_ALONE: 3.5}
"""From kill -9 of one of eight to the next round: of a member, and of the coordinator, which is one, too."""
REJOIN_RATIO = 1.3
"""The most that a re-join may take, in units of what it takes in operator mode."""


@dataclass(frozen=True)
class Verdict:
    """One limit at one N. ``measured``: the median, or why there is none; ``met``: None if it was not
    measured."""

    what: str
    n: int
    variant: str
    measured: str
    limit: str
    met: bool | None


def verdicts(samples: Samples) -> Iterator[Verdict]:
    """Each limit, also if nothing was measured for it. One of several runs that did not end well is none that
    meets a limit."""
    for what, who in ((SHRINK, f"a member, one of {N}"), (COORDINATOR, f"the coordinator, one of {N}")):
        for variant, seconds in KILL_SECONDS.items():
            yield _judged(samples, f"kill -9 of {who}, to the next round, s", what, N, variant, seconds)
    for n in samples.sizes(REJOIN, PEERS) or [N]:
        operator = samples.summary(REJOIN, n, OPERATOR)
        median = operator.median if operator is not None else None
        limit = None if median is None else REJOIN_RATIO * median
        for variant in (LEASES_ALONE, WITH_PODS):
            yield _judged(samples, "re-join, s", REJOIN, n, variant, limit)


def table(samples: Samples) -> str:
    """A section of the file of figures."""
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = [[v.what, str(v.n), v.variant, v.measured, v.limit, words[v.met]] for v in verdicts(samples)]
    return markdown.section(
        "Limits",
        f"Medians. That of a re-join is {REJOIN_RATIO} times the median of operator mode in the same run.",
        markdown.table(["", "N", "rights", "measured", "limit", ""], rows),
    )


def _judged(samples: Samples, title: str, what: str, n: int, variant: str, limit: float | None) -> Verdict:
    summary = samples.summary(what, n, PEERS, variant)
    if summary is None or limit is None:
        met = None
    else:
        met = summary.median is not None and not summary.failures and summary.median <= limit
    measured = "-" if summary is None else markdown.number(summary.median) or summary.ended
    if summary is not None and summary.median is not None and summary.failures:
        measured += f"; {sum(summary.failures.values())} of {summary.runs} failed"
    return Verdict(title, n, variant, measured, markdown.number(limit) or "-", met)
