"""One rank calls should_stop, and the others do not. All train until the test ends.

Usage: one_calls.py RANK
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count

from elasticjob import report_progress, should_stop


def main() -> None:
    for step in count(1):
        if os.environ["RANK"] == sys.argv[1]:
            should_stop(step)
        else:
            report_progress(step)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
