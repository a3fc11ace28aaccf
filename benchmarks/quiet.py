"""Whether the machine is quiet enough for figures that are to be kept."""

from __future__ import annotations

import argparse
import os
import sys

LOAD_PER_CPU = 0.4
"""The most that the load average of the last minute may be, for each processor."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """The flag ``--busy``."""
    parser.add_argument(
        "--busy", action="store_true", help="run on a busy machine, too: only to see that it runs"
    )


def refuse_if_busy(options: argparse.Namespace) -> None:
    """End the program if other work runs on this machine, unless it has the flag ``--busy``."""
    load, most = os.getloadavg()[0], LOAD_PER_CPU * len(os.sched_getaffinity(0))
    if load > most and not options.busy:
        sys.exit(
            f"the load average of the last minute is {load:.2f}, expected {most:.2f} at most: "
            "wait until this machine does nothing else (--busy runs nevertheless)"
        )
