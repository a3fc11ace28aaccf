"""Fixtures of the handler's tests: real TCPStores, real threads, Leases in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.resolver import shorten_lookups
from elasticjob.agent.settings import Settings
from tests.unit.handler.bench import Bench
from tests.unit.handler.joining import Start
from tests.unit.handler.memory_job import Job
from tests.unit.memory.agents import Pod
from tests.unit.memory_api import Leases, MemoryApi


@pytest.fixture(autouse=True, scope="module")
def _no_look_ups() -> None:
    """As ``make_handler`` does, and more: these tests are to take milliseconds."""
    shorten_lookups("attempts:0")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler sets these for the workers that its process starts; here they must not stay."""
    for name in ("ELASTICJOB_ROUND", "ELASTICJOB_PROGRESS_DIR", "PYTHONFAULTHANDLER"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def start(leases: Leases) -> Iterator[Start]:
    made: list[K8sRendezvousHandler] = []

    def one(pod: str, **settings: Any) -> K8sRendezvousHandler:
        chosen = Settings("ns", "job", pod=pod, pod_uid=f"uid-{pod}", **settings)
        made.append(K8sRendezvousHandler(chosen, "run", lambda: MemoryApi(leases)))
        return made[-1]

    yield one
    for handler in made:
        handler.shutdown()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def pod() -> Iterator[Pod]:
    made = Pod(limit=64 << 20)
    yield made
    made.close()


other = pod


@pytest.fixture
def job(tmp_path: Path, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, pod, monkeypatch)
