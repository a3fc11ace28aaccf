"""The figures of a run: raw in JSON, and what tables and pictures show of them.

A file holds `{"samples": [...], "environment": {...}}`, a sample in each line. What a measurement cost is in
its `figures`, by name. `requests` are API requests: for each participant in `results.json`, for each second
in `steady.json`, and of all participants, watches included, in `scale.json`.
In `results.json` a re-join also has the processor time that it took, in milliseconds for each participant:
`handler_processor_ms`, `operator_processor_ms` and `apiserver_processor_ms`. In `scale.json` there are:

* `told_seconds`: from the moment at which all were to call to the last return
* `written_seconds`: from the last call to the last acknowledged announcement
* `published_seconds`: from the last call to the first participant that sees the round
* `seen_seconds`: from the last call to the last participant that sees the round
* `operator_requests`: requests of the operator
* `refused`: requests that participants had to repeat
* `bytes_sent`: bytes on the wire from participants to the API server, TLS included
* `bytes_received`: bytes on the wire from the API server to participants
* `body_bytes`: bytes in the bodies of all requests, as the API server counts them
* `watch_bytes`: bytes of all watch events that the API server has sent, as it counts them
* `operator_cpu_seconds`: CPU time of the operator
* `operator_megabytes`: resident memory of the operator afterwards
* `apiserver_cpu_seconds`: CPU time of the API server
* `apiserver_megabytes`: resident memory of the API server afterwards
* `swarm_cpu_seconds`: CPU time of the participants' processes
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

OK = "ok"
TIMEOUT = "timeout"
JOB_DIED = "job died"

STORE_SHARING_OFF = "store sharing off"
"""c10d with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: without it no replacement can join
(docs/internals/conformance.md, D1)."""
STANDBY = "standby"
"""k8s with a spare that had joined before the kill, in place of a replacement that starts to join then."""

SECONDS = "seconds"
"""The name under which a sample's seconds can be asked for like its other figures."""


REQUESTS = "requests"
OPERATOR, HANDLER, APISERVER = "operator", "handler", "apiserver"
"""Processes whose time is counted; the handlers are all participants' processes together."""


def processor_figure(name: str) -> str:
    """The name of the figure with its milliseconds of processor time."""
    return f"{name}_processor_ms"


@dataclass(frozen=True)
class Outcome:
    """One measurement: its seconds if it ended well, else why not; `detail` is for the log."""

    seconds: float | None
    outcome: str = OK
    detail: str = ""
    requests: float | None = None
    processor: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of processor time, by the name of the process."""

    def sample(self, what: str, backend: str, n: int, variant: str = "") -> Sample:
        """The measurement with what was measured."""
        figures = {} if self.requests is None else {REQUESTS: self.requests}
        figures |= {processor_figure(name): value for name, value in self.processor.items()}
        return Sample(what, backend, n, self.seconds, self.outcome, self.detail, figures, variant)


@dataclass(frozen=True)
class Sample:
    """One measurement with N participants, and what it cost. `seconds` is None if it did not end well;
    `variant` is empty for a backend as it ships."""

    what: str
    backend: str
    n: int
    seconds: float | None
    outcome: str = OK
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    variant: str = ""

    def figure(self, name: str) -> float | None:
        """One of the figures, or None."""
        return self.seconds if name == SECONDS else self.figures.get(name)


@dataclass(frozen=True)
class Summary:
    """Median and spread of the measurements that ended well, and how the others ended."""

    median: float | None
    low: float | None
    high: float | None
    runs: int
    failures: Mapping[str, int]

    @staticmethod
    def of(figures: Iterable[float | None], outcomes: Sequence[str]) -> Summary:
        """Summarize one measurement, repeated; None is a run that did not end well."""
        good = [figure for figure in figures if figure is not None]
        return Summary(
            median=statistics.median(good) if good else None,
            low=min(good, default=None),
            high=max(good, default=None),
            runs=len(outcomes),
            failures={how: outcomes.count(how) for how in dict.fromkeys(outcomes) if how != OK},
        )

    @property
    def ended(self) -> str:
        """How it ended where nothing ended well: the commonest failure, else empty."""
        if self.median is not None or not self.failures:
            return ""
        return max(self.failures, key=lambda outcome: self.failures[outcome])


class Samples:
    """All measurements of a run, in their order, with the environment that they were taken in."""

    def __init__(self, environment: Mapping[str, object]) -> None:
        self.environment = dict(environment)
        self.all: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Append one."""
        self.all.append(sample)

    def of(self, what: str, n: int, backend: str, variant: str = "") -> list[Sample]:
        """All samples of one measurement."""
        wanted = (what, n, backend, variant)
        return [one for one in self.all if (one.what, one.n, one.backend, one.variant) == wanted]

    def sizes(self, what: str, backend: str | None = None) -> list[int]:
        """The N that were measured, ascending."""
        return sorted({one.n for one in self.all if one.what == what and backend in (None, one.backend)})

    def backends(self, what: str | None = None) -> list[tuple[str, str]]:
        """The (backend, variant) pairs of ``what`` or of all, in the order of their first sample."""
        return list(dict.fromkeys((one.backend, one.variant) for one in self.all if what in (None, one.what)))

    def summary(self, what: str, n: int, backend: str, variant: str = "") -> Summary | None:
        """Median and spread of the seconds, if it was measured."""
        found = self.of(what, n, backend, variant)
        return Summary.of([one.seconds for one in found], [one.outcome for one in found]) if found else None

    def median(self, what: str, n: int, backend: str, figure: str = SECONDS) -> float | None:
        """The median of a figure over the samples that have it and ended well."""
        figures = (one.figure(figure) for one in self.of(what, n, backend) if one.outcome == OK)
        found = [value for value in figures if value is not None]
        return statistics.median(found) if found else None

    def curve(self, what: str, backend: str, figure: str = SECONDS) -> list[tuple[int, float]]:
        """(N, median) for every N at which a measurement ended well."""
        medians = [(n, self.median(what, n, backend, figure)) for n in self.sizes(what, backend)]
        return [(n, value) for n, value in medians if value is not None]

    def ends(self, what: str, backend: str) -> list[tuple[int, str]]:
        """(N, how it ended) for every N at which no measurement ended well."""
        found = [(n, self.of(what, n, backend)) for n in self.sizes(what, backend)]
        return [(n, some[0].outcome) for n, some in found if all(one.seconds is None for one in some)]

    def write(self, path: Path) -> None:
        """Write the raw figures as JSON."""
        lines = ",\n".join("    " + json.dumps(_rounded(one)) for one in self.all)
        facts = json.dumps(self.environment, indent=2).replace("\n", "\n  ")
        path.write_text(f'{{\n  "samples": [\n{lines}\n  ],\n  "environment": {facts}\n}}\n')

    @staticmethod
    def read(path: Path) -> Samples:
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        samples = Samples(content["environment"])
        samples.all = [Sample(**entry) for entry in content["samples"]]
        return samples


def _rounded(sample: Sample) -> dict[str, object]:
    """What is written of a sample: four digits, and only the variant that it has."""
    seconds = None if sample.seconds is None else round(sample.seconds, 4)
    figures = {name: round(value, 4) for name, value in sample.figures.items()}
    entry = {**asdict(sample), "seconds": seconds, "figures": figures}
    return {name: value for name, value in entry.items() if value or name != "variant"}
