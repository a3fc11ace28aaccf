"""Rank 0 trains until it is asked to stop. The others have ten steps to make, and end when the test says so.

Usage: uneven_train.py FOLDER. The test makes FOLDER/end, or FOLDER/exit for an end that runs nothing more.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from elasticjob import should_stop, stop_here


def main() -> None:
    folder, rank, step = Path(sys.argv[1]), int(os.environ["RANK"]), 0
    while rank == 0 or step < 10:
        step += 1
        if should_stop(step):
            stop_here()
        time.sleep(0.05)
    while not (folder / "end").exists():
        if (folder / "exit").exists():
            os._exit(0)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
