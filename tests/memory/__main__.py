"""``python -m tests.memory``: many histories of memory checkpoints on all cores; ``--trace SEED``
prints one."""

from __future__ import annotations

import collections
import sys
import time
import traceback

from tests.histories import parser, play_all
from tests.memory.history import History
from tests.memory.ledger import Violation


def check(seed: int) -> tuple[str, str, collections.Counter[str]]:
    """The rule that is broken, "" for none, the text, and what has happened. Every third history is calm."""
    history = History(seed, calm=seed % 3 == 0)
    try:
        history.play()
    except Violation as violation:
        return violation.rule, f"seed {seed}: {violation}", history.counts
    except Exception:  # noqa: BLE001 - the seed has to be known
        return "error", f"seed {seed}: {traceback.format_exc()}", history.counts
    return "", "", history.counts


def main() -> int:
    """Returns 1 if a history broke a rule."""
    args = parser(__doc__, 1000).parse_args()
    if args.trace is not None:
        return _trace(args.trace)
    began = time.monotonic()
    broken: collections.Counter[str] = collections.Counter()
    happened: collections.Counter[str] = collections.Counter()
    for rule, text, counts in play_all(check, args, chunk=10):
        happened += counts
        if rule:
            broken[rule] += 1
            if broken[rule] <= 3:
                print(text, flush=True)
    rate = args.histories / (time.monotonic() - began) * 60
    print(dict(happened))
    print(
        f"{args.histories} histories, {broken.total()} broke a rule, {rate:.0f} a minute {dict(broken) or ''}"
    )
    return 1 if broken else 0


def _trace(seed: int) -> int:
    history = History(seed, calm=seed % 3 == 0)
    try:
        history.play()
    except Violation as violation:
        history.trace.append(str(violation))
    finally:
        print("\n".join(history.trace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
