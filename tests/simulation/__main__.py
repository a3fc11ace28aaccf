"""``python -m tests.simulation``: many histories on all cores; a failing seed prints its trace.

``--histories N`` (from ``--seed`` on), ``--trace SEED`` prints one history whole.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import time

from tests.histories import parser, play_all
from tests.simulation import traits
from tests.simulation.history import Failed, check, play
from tests.simulation.violation import Violation
from tests.simulation.world import World


def main() -> int:
    """Returns 1 if a history broke a rule."""
    options = parser(__doc__, 2000)
    options.add_argument("--stop-after", type=int, default=1, help="failing histories")
    options.add_argument(
        "--class", dest="classes", action="append", choices=traits.CLASSES, help="only these"
    )
    args = options.parse_args()
    if args.classes:
        traits.ON, traits.SHARE = set(args.classes), 1.0
    if args.trace is not None:
        return _trace(args.trace)
    began = time.monotonic()
    failed: list[Failed] = []
    done = 0
    with contextlib.closing(play_all(check, args)) as results:
        for result in results:
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
