"""A listener of heartbeats made of functions; one that is left out does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.core.heartbeats import Loss


def nothing(*_: object) -> None: ...


@dataclass(frozen=True)
class Listening:
    lost: Callable[[Mapping[int, Loss]], None] = nothing
    progressed: Callable[[ProgressReport, bool], None] = nothing
    judged: Callable[[RoundReport], None] = nothing
    verify_source: Callable[[float], None] = nothing
    looked: Callable[[], None] = nothing
