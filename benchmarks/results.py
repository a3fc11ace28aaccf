"""The figures of one run: raw in `results.json`, and what table and plot show of them.

`results.json` holds `{"results": [...], "environment": {...}}`. An entry of `results` is one `Series`: the
same measurement several times. `seconds` and `outcomes` go side by side; a measurement that did not end well
has no seconds. `requests` is there where requests were counted: API requests per participant and round.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OK = "ok"
TIMEOUT = "timeout"
JOB_DIED = "job died"

STORE_SHARING_OFF = "store sharing off"
"""c10d with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: without it no replacement can join
(docs/internals/conformance.md, D1)."""
STANDBY = "standby"
"""k8s with a spare that had joined before the kill, in place of a replacement that starts to join then."""


@dataclass(frozen=True)
class Outcome:
    """One measurement: its seconds if it ended well, else why not; `detail` is for the log."""

    seconds: float | None
    outcome: str = OK
    detail: str = ""
    requests: float | None = None


@dataclass(frozen=True)
class Key:
    """What was measured: one line of the table. `variant` is empty for a backend as it ships."""

    what: str
    backend: str
    variant: str
    n: int


@dataclass(frozen=True)
class Summary:
    """Median and spread of the measurements that ended well, and how the others ended."""

    median: float | None
    low: float | None
    high: float | None
    runs: int
    failures: Mapping[str, int]
    requests: float | None = None

    @staticmethod
    def of(
        figures: Iterable[float | None], outcomes: Sequence[str], requests: Sequence[float] = ()
    ) -> Summary:
        """Of the same measurement several times; None is one that did not end well."""
        good = [figure for figure in figures if figure is not None]
        return Summary(
            median=statistics.median(good) if good else None,
            low=min(good, default=None),
            high=max(good, default=None),
            runs=len(outcomes),
            failures={how: outcomes.count(how) for how in dict.fromkeys(outcomes) if how != OK},
            requests=statistics.median(requests) if requests else None,
        )

    @property
    def ended(self) -> str:
        """How it ended where nothing ended well: the commonest failure, else empty."""
        if self.median is not None or not self.failures:
            return ""
        return max(self.failures, key=lambda outcome: self.failures[outcome])


@dataclass
class Series:
    """The same measurement several times, in the order of the runs."""

    key: Key
    seconds: list[float | None] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Append one measurement."""
        self.seconds.append(outcome.seconds)
        self.outcomes.append(outcome.outcome)
        if outcome.requests is not None:
            self.requests.append(outcome.requests)

    def summary(self) -> Summary:
        """Median and spread."""
        return Summary.of(self.seconds, self.outcomes, self.requests)


class Results:
    """All series of a run, in the order in which they began, with the environment they were taken in."""

    def __init__(self, environment: Mapping[str, object]) -> None:
        self.environment = dict(environment)
        self._series: dict[Key, Series] = {}

    def add(self, key: Key, outcome: Outcome) -> None:
        """Append one measurement to its series."""
        self._series.setdefault(key, Series(key)).add(outcome)

    def series(self) -> Iterable[Series]:
        """Every series."""
        return self._series.values()

    def find(self, key: Key) -> Series | None:
        """The series of `key`, if there is one."""
        return self._series.get(key)

    def summary(self, key: Key) -> Summary | None:
        """Median and spread of `key`, if it was measured."""
        series = self._series.get(key)
        return series.summary() if series else None

    def sizes(self, what: str) -> list[int]:
        """The N for which `what` was measured, ascending."""
        return sorted({key.n for key in self._series if key.what == what})

    def backends(self, what: str) -> list[tuple[str, str]]:
        """The (backend, variant) pairs for which `what` was measured: ours first, then as shipped."""
        found = {(key.backend, key.variant) for key in self._series if key.what == what}
        return sorted(found, key=lambda pair: (pair[0] == "c10d", pair))

    def write(self, path: Path) -> None:
        """Write the raw figures as JSON."""
        entries = []
        for series in self._series.values():
            entry: dict[str, object] = {
                "what": series.key.what,
                "backend": series.key.backend,
                "variant": series.key.variant,
                "n": series.key.n,
                "seconds": [None if value is None else round(value, 4) for value in series.seconds],
                "outcomes": series.outcomes,
            }
            if series.requests:
                entry["requests"] = [round(value, 2) for value in series.requests]
            entries.append(entry)
        write_figures(path, "results", entries, self.environment)

    @staticmethod
    def read(path: Path) -> Results:
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        results = Results(content.get("environment", {}))
        for entry in content["results"]:
            key = Key(entry["what"], entry["backend"], entry["variant"], entry["n"])
            results._series[key] = Series(key, entry["seconds"], entry["outcomes"], entry.get("requests", []))
        return results


def write_figures(
    path: Path, name: str, entries: Iterable[Mapping[str, object]], environment: Mapping[str, object]
) -> None:
    """Write raw figures as JSON: the entries under that name, a line each, and the environment."""
    lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
    facts = json.dumps(environment, indent=2).replace("\n", "\n  ")
    path.write_text(f'{{\n  "{name}": [\n{lines}\n  ],\n  "environment": {facts}\n}}\n')
