"""The figures as a Markdown table: medians and spread, and the ratio, which is what counts."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks import markdown
from benchmarks.markdown import document, facts, number, section, spread
from benchmarks.plan import JOIN, REJOIN, REPLACE, SHRINK
from benchmarks.results import (
    APISERVER,
    HANDLER,
    OPERATOR,
    REQUESTS,
    STANDBY,
    STORE_SHARING_OFF,
    Sample,
    Samples,
    processor_figure,
)

_TITLES = {
    JOIN: "First join: the first `next_rendezvous` of N fresh participants (ours: TLS connections and all)",
    REJOIN: "Re-join: N participants call again after a completed round",
    REPLACE: "Replace: kill -9 of one of N, a replacement is ready; from the kill "
    "(detection included in ours, left out of c10d's)",
    SHRINK: "Shrink: kill -9 of one of N, no replacement, N - 1 suffice; from the kill (likewise)",
}
_HEAD = (
    "Seconds: median (minimum to maximum) of the runs that ended well, from the last participant's call "
    "of `next_rendezvous`, or from the kill, to the last return. One process per participant, all on one "
    "machine, both backends in turns. `ratio` is k8s by the best variant of c10d. After a kill, c10d's "
    "survivors are told at once (perfect detection); ours notice by themselves, from the moment when the "
    "pod's status says that its container has ended, which the benchmark writes right after the kill "
    "(kubelet takes up to a second). *ms of processor*: user and system time of a re-join, divided by N, "
    "of all agents, the operator and the API server, from the call until the round's reports have been sent, "
    "of c10d's agents until the last return; without what they use in such a time while nothing happens."
)
_COLUMNS = {
    ("k8s", ""): "k8s",
    ("k8s", STANDBY): "k8s, standby",
    ("c10d", ""): "c10d as it ships",
    ("c10d", STORE_SHARING_OFF): "c10d, store sharing off",
}


class _Cost(NamedTuple):
    """A column beside the seconds: the median of a figure of a backend as it ships."""

    backend: str
    figure: str
    header: str

    def of(self, samples: Samples, what: str) -> list[Sample]:
        """What may have it."""
        return [one for one in samples.all if (one.what, one.backend) == (what, self.backend)]


_COSTS = (
    _Cost("k8s", REQUESTS, "API requests per participant"),
    _Cost("k8s", processor_figure(HANDLER), "ms of processor: agent"),
    _Cost("k8s", processor_figure(OPERATOR), "operator"),
    _Cost("k8s", processor_figure(APISERVER), "API server"),
    _Cost("c10d", processor_figure(HANDLER), "c10d's agent"),
)


def table(samples: Samples) -> str:
    """The whole document."""
    sections = [_by_size(samples, what, title) for what, title in _TITLES.items() if samples.sizes(what)]
    return document("Joining and re-forming", _HEAD, facts(samples.environment), *sections)


def column_name(backend: str, variant: str) -> str:
    """How a backend and variant is called in the table."""
    return _COLUMNS.get((backend, variant), f"{backend}, {variant}" if variant else backend)


def ratio(samples: Samples, what: str, n: int) -> float | None:
    """The median of k8s by the smallest median that any variant of c10d reached."""
    ours = samples.median(what, n, "k8s")
    found = [samples.summary(what, n, *pair) for pair in samples.backends(what) if pair[0] == "c10d"]
    theirs = [one.median for one in found if one is not None and one.median is not None]
    return ours / min(theirs) if ours is not None and theirs else None


def _by_size(samples: Samples, what: str, title: str) -> str:
    backends = samples.backends(what)
    costs = [cost for cost in _COSTS if any(cost.figure in one.figures for one in cost.of(samples, what))]
    header = ["N", *(column_name(*pair) for pair in backends), "ratio", *(cost.header for cost in costs)]
    rows = []
    for n in samples.sizes(what):
        row = [str(n), *(spread(samples.summary(what, n, *pair)) for pair in backends)]
        row.append(number(ratio(samples, what, n)))
        row += [number(samples.median(what, n, cost.backend, cost.figure)) for cost in costs]
        rows.append(row)
    return section(title, markdown.table(header, rows))
