"""``python -m tests.simulation``: many histories on all cores; a failing seed prints its trace.

``--histories N`` (from ``--seed`` on), ``--trace SEED`` prints one history whole.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
import time

from tests.simulation import traits
from tests.simulation.history import Failed, check, play
from tests.simulation.violation import Violation
from tests.simulation.world import World


def main() -> int:
    """Returns 1 if a history broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--stop-after", type=int, default=1, help="failing histories")
    parser.add_argument("--trace", type=int)
    parser.add_argument("--class", dest="classes", action="append", choices=traits.CLASSES, help="only these")
    args = parser.parse_args()
    if args.classes:
        traits.ON, traits.SHARE = set(args.classes), 1.0
    if args.trace is not None:
        return _trace(args.trace)
    began = time.monotonic()
    failed: list[Failed] = []
    done = 0
    with multiprocessing.Pool(args.jobs) as pool:
        seeds = range(args.seed, args.seed + args.histories)
        for result in pool.imap_unordered(check, seeds, chunksize=20):
            done += 1
            if result is not None:
                failed.append(result)
                print(f"seed {result.seed}: {result.text}", flush=True)
                if len(failed) >= args.stop_after:
                    break
            if done % 5000 == 0:
                print(f"{done} histories, {done / (time.monotonic() - began) * 60:.0f} a minute", flush=True)
    if failed:
        print(failed[0])
        print(dict(collections.Counter(f.rule for f in failed)))
    rate = done / (time.monotonic() - began) * 60
    print(f"{done} histories, {len(failed)} broke a rule, {rate:.0f} a minute")
    return 1 if failed else 0


def _trace(seed: int) -> int:
    world = World(seed)
    try:
        play(world)
    except Violation as violation:
        world.kernel.say(str(violation))
    print(world.kernel.readable(1_000_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
