"""The figures as a Markdown table: medians and spread, and the ratio, which is what counts."""

from __future__ import annotations

from benchmarks import markdown
from benchmarks.markdown import document, facts, number, section, spread
from benchmarks.plan import JOIN, KILL_TO_FIRST_STEP, REJOIN, REPLACE, SHRINK, WORKER_START
from benchmarks.results import STANDBY, STORE_SHARING_OFF, Key, Results

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


def table(results: Results) -> str:
    """The whole document."""
    sections = [_by_size(results, what, title) for what, title in _TITLES.items() if results.sizes(what)]
    if results.sizes(KILL_TO_FIRST_STEP) or results.sizes(WORKER_START):
        sections.append(_first_steps(results))
    return document("Joining and re-forming", _HEAD, facts(results.environment), *sections)


def column_name(backend: str, variant: str) -> str:
    """How a backend and variant is called in the table and in the plot."""
    return _COLUMNS.get((backend, variant), f"{backend}, {variant}" if variant else backend)


def ratio(results: Results, what: str, n: int) -> float | None:
    """The median of k8s by the smallest median that any variant of c10d reached."""
    ours = results.summary(Key(what, "k8s", "", n))
    theirs = [
        summary.median
        for backend, variant in results.backends(what)
        if backend == "c10d"
        and (summary := results.summary(Key(what, backend, variant, n))) is not None
        and summary.median is not None
    ]
    if ours is None or ours.median is None or not theirs:
        return None
    return ours.median / min(theirs)


def _by_size(results: Results, what: str, title: str) -> str:
    backends = results.backends(what)
    requests = any(series.requests for series in results.series() if series.key.what == what)
    header = ["N", *(column_name(*pair) for pair in backends), "ratio"]
    if requests:
        header.append("API requests per participant")
    rows = []
    for n in results.sizes(what):
        row = [str(n), *(spread(results.summary(Key(what, *pair, n))) for pair in backends)]
        row.append(number(ratio(results, what, n)))
        if requests:
            ours = results.summary(Key(what, "k8s", "", n))
            row.append(number(ours.requests if ours else None))
        rows.append(row)
    return section(title, markdown.table(header, rows))


def _first_steps(results: Results) -> str:
    """The kill figures beside the bare worker start, and what is left of them without it."""
    bare = results.summary(Key(WORKER_START, "c10d", "", 2))
    rows = []
    for backend, variant in results.backends(KILL_TO_FIRST_STEP):
        summary = results.summary(Key(KILL_TO_FIRST_STEP, backend, variant, 2))
        rest = None
        if summary and summary.median is not None and bare and bare.median is not None:
            rest = summary.median - bare.median
        rows.append(
            [f"kill -9 to first step, {column_name(backend, variant)}", spread(summary), number(rest)]
        )
    for n in results.sizes(WORKER_START):
        name = f"bare start under `torchrun --standalone`, {n} worker{'s' if n > 1 else ''}"
        rows.append([name, spread(results.summary(Key(WORKER_START, "c10d", "", n))), ""])
    title = "Two real torchruns: kill -9 of one, a new one at once, to the first step in all workers"
    header = ["what", "seconds", "less the bare start of 2 workers"]
    return section(title, markdown.table(header, rows))
