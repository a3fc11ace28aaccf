"""``python -m tests.peers``: many histories of runs without operator on all cores; ``--trace SEED`` prints
one."""

from __future__ import annotations

import collections
import contextlib
import sys
import time
import traceback

from tests.histories import parser, play_all
from tests.peers.history import History, play
from tests.peers.truth import Violation


def check(seed: int) -> tuple[str, str]:
    """The rule that is broken, "" for none, and the text."""
    try:
        play(seed)
    except Violation as violation:
        return violation.rule, f"seed {seed}: {violation}"
    except Exception:  # noqa: BLE001 - the seed has to be known
        return "error", f"seed {seed}: {traceback.format_exc()}"
    return "", ""


def main() -> int:
    """Returns 1 if a history broke a rule. SIGINT ends it, and what was played counts."""
    args = parser(__doc__, 10_000).parse_args()
    if args.trace is not None:
        return _trace(args.trace)
    began = time.monotonic()
    broken: collections.Counter[str] = collections.Counter()
    played = 0
    with contextlib.suppress(KeyboardInterrupt):
        for rule, text in play_all(check, args, chunk=10):
            played += 1
            if rule:
                broken[rule] += 1
                if broken[rule] <= 3:
                    print(text, flush=True)
    rate = played / (time.monotonic() - began) * 60
    print(f"{played} histories, {broken.total()} broke a rule, {rate:.0f} a minute {dict(broken) or ''}")
    return 1 if broken else 0


def _trace(seed: int) -> int:
    history = History(seed)
    try:
        history.play()
    except Violation as violation:
        history.kernel.say(str(violation))
    print(history.kernel.readable(1_000_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
