"""Says why the job does not train while its log is followed and stays silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.resource import ElasticJob

SECONDS = 3.0
"""How long no line may come before the job is read again."""

_T = TypeVar("_T")


def unseen(name: str) -> str:
    """What is said of a job without a status."""
    return f"no operator has looked at {name}: `elasticjob doctor` tells why"


def reason(job: ElasticJob) -> str:
    """Why a job has nothing to say; "" if it trains or has ended."""
    training = job.condition("Training")
    if training is None:
        return unseen(job.name)
    if job.ended or training.status == "True":
        return ""
    return f"{job.name}: {training.reason}: {training.message}"


def failed(job: ElasticJob) -> str:
    """How a job has failed; "" if it has not."""
    found = job.condition("Failed")
    return f"{job.name}: Failed: {found.reason}: {found.message}" if found and found.status == "True" else ""


class Silence:
    """Looks at the job while no line comes, and says on stderr what keeps it, again when that changes.

    ``said``: the state that has been printed already.
    """

    def __init__(self, jobs: Jobs, name: str, said: str = "") -> None:
        self._jobs, self._name = jobs, name
        self._said = f"{name}: {said}" if said else ""
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Silence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def over(self, lines: Iterable[_T]) -> Iterator[_T]:
        """These lines, each of which is heard."""
        for line in lines:
            self._heard = time.monotonic()
            yield line

    def _look(self) -> None:
        while not self._over.wait(max(0.05, self._heard + SECONDS - time.monotonic())):
            if time.monotonic() - self._heard < SECONDS:
                continue
            self._heard = time.monotonic()
            try:
                text = reason(self._jobs.get(self._name))
            except Exception:  # noqa: BLE001 - who follows the log says it; at the end, the client is closed
                continue
            if text and text != self._said and not self._over.is_set():
                click.echo(text, err=True)
            self._said = text or self._said
