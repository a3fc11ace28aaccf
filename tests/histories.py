"""The command line of the simulations: many histories on all cores, or one of them whole."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


def parser(description: str | None, histories: int) -> argparse.ArgumentParser:
    """``--histories`` with this default, ``--seed``, ``--jobs`` and ``--trace``."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--histories", type=int, default=histories)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=os.cpu_count())
    made.add_argument("--trace", type=int)
    return made


def play_all(
    check: Callable[[int], T], args: argparse.Namespace, chunk: int = 20
) -> Generator[T, None, None]:
    """What ``check`` says of each seed, as they come. Closing it ends those that still run."""
    with multiprocessing.Pool(args.jobs, _collect_less) as pool:
        yield from pool.imap_unordered(check, range(args.seed, args.seed + args.histories), chunksize=chunk)


def _collect_less() -> None:
    """A history is short, and most of its objects live as long."""
    gc.set_threshold(200_000, 20, 50)
