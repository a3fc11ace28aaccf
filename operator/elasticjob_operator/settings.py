"""How the operator runs: from the command line, or from the environment under ``kopf run``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

NAMESPACES_ENV = "ELASTICJOB_NAMESPACES"


@dataclass(frozen=True)
class Settings:
    """Times are seconds."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty: all."""
    relist_seconds: float = 300.0
    """How often the list of jobs is taken from the API server (jittered): it finds what a watch missed."""
    max_passes: int = 64
    """Passes of different jobs at a time; each waits for the API server most of its time."""
    max_loop_lag: float = 20.0
    """A longer stall of the event loop fails the liveness probe."""
    max_silence: float = 180.0
    """So does an informer that has heard nothing, not even a bookmark, for so long."""


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings for ``kopf run``: ``ELASTICJOB_NAMESPACES`` is a list with commas, absent for all."""
    names = environ.get(NAMESPACES_ENV, "").split(",")
    return Settings(namespaces=tuple(name.strip() for name in names if name.strip()))
