"""``python -m tests.checkpoints``: many histories on all cores; ``--trace SEED`` prints one."""

from __future__ import annotations

import logging
import sys
import time

from tests.checkpoints.history import Broken, play
from tests.histories import parser, play_all


def check(seed: int) -> str:
    """What is broken, or nothing."""
    logging.basicConfig(level=logging.CRITICAL)  # else the library tells of each save
    try:
        play(seed)
    except Broken as broken:
        return str(broken)
    return ""


def main() -> int:
    """Returns 1 if a history broke a rule."""
    args = parser(__doc__, 10_000).parse_args()
    if args.trace is not None:
        try:
            print("\n".join(play(args.trace).trace))
        except Broken as broken:
            print(broken)
        return 0
    began = time.monotonic()
    failed = []
    for found in play_all(check, args):
        if found:
            failed.append(found)
            if len(failed) == 1:
                print(found, flush=True)
    seconds = time.monotonic() - began
    print(f"{args.histories} histories of checkpoints, {len(failed)} broke a rule, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
