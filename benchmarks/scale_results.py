"""What `benchmarks.scale` measures: samples, their medians, and how they grow with N.

A sample has seconds, and figures by name:

* `told_seconds`: from the moment for which all were told to call to the last return
* `written_seconds`: from the last call to the last acknowledged announcement
* `published_seconds`: from the last call to the first participant that sees the round
* `seen_seconds`: from the last call to the last participant that sees the round
* `requests`: requests of participants, watches included
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
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.results import OK, Summary, write_figures

SECONDS = "seconds"
"""The name under which a sample's seconds can be asked for like its other figures."""
FIT_FROM = 32
"""Below so many participants the time is that of a few requests, whatever their number: it says nothing about
growth."""


@dataclass(frozen=True)
class Sample:
    """One round of N participants. `seconds` is from the last participant's call to the last participant's
    return, None if it did not end well; `figures` are what it cost, by name."""

    what: str
    backend: str
    n: int
    seconds: float | None
    outcome: str = OK
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        """One of the figures, or None."""
        return self.seconds if name == SECONDS else self.figures.get(name)


class Samples:
    """All samples of a run, with the environment that they were taken in."""

    def __init__(self, environment: Mapping[str, object]) -> None:
        self.environment = dict(environment)
        self.all: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Append one."""
        self.all.append(sample)

    def of(self, what: str, backend: str, n: int) -> list[Sample]:
        """The samples of one point."""
        return [one for one in self.all if (one.what, one.backend, one.n) == (what, backend, n)]

    def sizes(self, what: str, backend: str | None = None) -> list[int]:
        """The N that were measured, ascending."""
        return sorted({one.n for one in self.all if one.what == what and backend in (None, one.backend)})

    def backends(self) -> list[str]:
        """The backends, in the order in which they were first measured."""
        return list(dict.fromkeys(one.backend for one in self.all))

    def curve(self, what: str, backend: str, figure: str = SECONDS) -> list[tuple[int, float]]:
        """(N, median) for every N at which a round ended well."""
        points = []
        for n in self.sizes(what, backend):
            good = values(self.of(what, backend, n), figure)
            if good:
                points.append((n, statistics.median(good)))
        return points

    def ends(self, what: str, backend: str) -> list[tuple[int, str]]:
        """(N, how it ended) for every N at which no round ended well."""
        found = []
        for n in self.sizes(what, backend):
            samples = self.of(what, backend, n)
            if all(one.seconds is None for one in samples):
                found.append((n, samples[0].outcome))
        return found

    def write(self, path: Path) -> None:
        """Write the raw figures as JSON."""
        write_figures(path, "samples", (_rounded(asdict(one)) for one in self.all), self.environment)

    @staticmethod
    def read(path: Path) -> Samples:
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        samples = Samples(content["environment"])
        samples.all = [Sample(**entry) for entry in content["samples"]]
        return samples


@dataclass(frozen=True)
class Fit:
    """value = factor * N ** exponent, by least squares of the logarithms."""

    factor: float
    exponent: float

    def at(self, n: float) -> float:
        """The value at N."""
        return float(self.factor * n**self.exponent)


def fit(points: Sequence[tuple[int, float]], start: int = FIT_FROM) -> Fit | None:
    """The power law through the points from N = `start` on; None with fewer than two of them."""
    logs = [(math.log(n), math.log(value)) for n, value in points if n >= start and value > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    slope, intercept = statistics.linear_regression([x for x, _ in logs], [y for _, y in logs])
    return Fit(math.exp(intercept), slope)


def summary(samples: Sequence[Sample]) -> Summary | None:
    """Median and spread of the seconds, if there are samples."""
    return Summary.of([one.seconds for one in samples], [one.outcome for one in samples]) if samples else None


def values(samples: Iterable[Sample], figure: str) -> list[float]:
    """That figure of every sample that has it and ended well."""
    found = (one.figure(figure) for one in samples if one.outcome == OK)
    return [value for value in found if value is not None]


def _rounded(entry: dict[str, object]) -> dict[str, object]:
    figures = entry["figures"]
    assert isinstance(figures, dict)
    seconds = entry["seconds"]
    return entry | {
        "seconds": round(seconds, 4) if isinstance(seconds, float) else None,
        "figures": {name: round(value, 4) for name, value in figures.items()},
    }
