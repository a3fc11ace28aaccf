"""``python -m tests.checkpoints``: many histories on all cores; ``--trace SEED`` prints one."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.checkpoints.history import Broken, play


def check(seed: int) -> str:
    """What is broken, or nothing."""
    try:
        play(seed)
    except Broken as broken:
        return str(broken)
    return ""


def main() -> int:
    """Returns 1 if a history broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--trace", type=int)
    args = parser.parse_args()
    if args.trace is not None:
        try:
            print("\n".join(play(args.trace).trace))
        except Broken as broken:
            print(broken)
        return 0
    began = time.monotonic()
    failed = []
    with multiprocessing.Pool(args.jobs) as pool:
        for found in pool.imap_unordered(check, range(args.seed, args.seed + args.histories), chunksize=20):
            if found:
                failed.append(found)
                if len(failed) == 1:
                    print(found, flush=True)
    seconds = time.monotonic() - began
    print(f"{args.histories} histories of checkpoints, {len(failed)} broke a rule, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
