"""The operator, with a stamp of the clock at each of its steps: a line of JSON in `$BENCH_STAMPS`.

It does what `python -m elasticjob_operator` does. The clock is CLOCK_MONOTONIC, which all processes of a
machine share.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticjob_operator.__main__ import main as operator
from elasticjob_operator.controller.reconciler import Reconciler
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.informer import Informer

_FILE = Path(os.environ["BENCH_STAMPS"]).open("a", buffering=1)  # noqa: SIM115 - open as long as the process


def stamp(what: str, began: float, ended: float) -> None:
    """One line."""
    _FILE.write(json.dumps([what, began, ended]) + "\n")


def main() -> None:
    """Run the operator."""
    classes: Any = (Reconciler, Client, Informer)
    reconciler, client, informer = classes
    reconciler._observe_and_plan = _sync(reconciler._observe_and_plan, lambda *_: "plan")
    reconciler.reconcile = _awaited(reconciler.reconcile, lambda *_: "pass")
    client._request = _awaited(client._request, lambda _, method, path: f"{method} {path}")
    informer._take = _sync(informer._take, _batch)
    operator()


def _batch(informer: Any, batch: Any) -> str:
    return f"WATCH {informer.path} {len(batch)}"


def _sync(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            stamp(name(*arguments), began, time.monotonic())

    return call


def _awaited(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return await function(*arguments, **named)
        finally:
            stamp(name(*arguments), began, time.monotonic())

    return call


if __name__ == "__main__":
    main()
