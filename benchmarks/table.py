"""The figures as a Markdown table: medians and spread, and the ratio, which is what counts."""

from __future__ import annotations

from benchmarks import markdown
from benchmarks.markdown import document, facts, number, section, spread
from benchmarks.plan import JOIN, REJOIN, REPLACE, SHRINK
from benchmarks.results import STANDBY, STORE_SHARING_OFF, Samples

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
    "(kubelet takes up to a second)."
)
_COLUMNS = {
    ("k8s", ""): "k8s",
    ("k8s", STANDBY): "k8s, standby",
    ("c10d", ""): "c10d as it ships",
    ("c10d", STORE_SHARING_OFF): "c10d, store sharing off",
}


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
    requests = any(one.figures for one in samples.all if one.what == what)
    header = ["N", *(column_name(*pair) for pair in backends), "ratio"]
    if requests:
        header.append("API requests per participant")
    rows = []
    for n in samples.sizes(what):
        row = [str(n), *(spread(samples.summary(what, n, *pair)) for pair in backends)]
        row.append(number(ratio(samples, what, n)))
        if requests:
            row.append(number(samples.median(what, n, "k8s", "requests")))
        rows.append(row)
    return section(title, markdown.table(header, rows))
