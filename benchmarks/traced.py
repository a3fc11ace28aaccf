"""torchrun, with a stamp of the clock at each of its own steps: `python benchmarks/traced.py ARGUMENTS`.

Takes torchrun's arguments and does what it does; only around torch's functions there are stamps, so that any
backend is looked at in the same way and none is changed. A stamp is a line in `$BENCH_STAMPS/<agent>.agent`:
its name and the seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

# ruff: noqa: E402 - the first stamp comes before all imports

from __future__ import annotations

import time

_PYTHON = time.monotonic()

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FILE = (Path(os.environ["BENCH_STAMPS"]) / f"{os.environ['BENCH_AGENT']}.agent").open("a", buffering=1)
_HERE = str(Path(__file__).parent)


def stamp(name: str, at: float | None = None) -> None:
    """Write a line."""
    _FILE.write(f"{name} {time.monotonic() if at is None else at}\n")


def stamped(function: Callable[..., Any], before: str = "", after: str = "") -> Callable[..., Any]:
    """The function with a stamp when it is called, and one when it has returned."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if before:
            stamp(before)
        result = function(*arguments, **named)
        if after:
            stamp(after)
        return result

    return call


def main() -> None:
    """Run torchrun."""
    stamp("process", _process_start())
    stamp("python", _PYTHON)
    # torchrun's own path does not hold the folder of its script's first argument, nor this one.
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    from elasticjob.warm import early_start

    early_start.begin(
        ["python", "torchrun", *sys.argv[1:]]
    )  # as an injected handler does; not without warm=on
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.rendezvous import registry as handlers
    from torch.distributed.run import main as torchrun

    stamp("imported")
    # Any: to exchange a module's function is what no type allows.
    registry: Any = handlers
    make = registry.get_rendezvous_handler

    def traced(parameters: Any) -> Any:
        stamp("asked")
        handler: Any = make(parameters)
        stamp("made")
        handler.next_rendezvous = stamped(handler.next_rendezvous, "called", "returned")
        return handler

    registry.get_rendezvous_handler = traced
    agent: Any = LocalElasticAgent
    agent._restart_workers = stamped(agent._restart_workers, "told")
    agent._start_workers = stamped(agent._start_workers, "ranked", "spawned")
    sys.exit(torchrun())


def _process_start() -> float:
    """When this process was made, in hundredths of a second: before Python's own start (Linux)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return ticks / os.sysconf("SC_CLK_TCK") - since_boot


if __name__ == "__main__":
    main()
