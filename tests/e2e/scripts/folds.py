"""Trains each fold in a process of its own, the second for so many seconds.

Usage: folds.py SECONDS FOLDER. FOLDER/done is made after the last fold.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from elasticjob import report_progress


def main() -> None:
    if len(sys.argv) == 2:
        for step in range(10 * int(sys.argv[1])):
            report_progress(step)
            time.sleep(0.1)
        return
    for seconds in ("1", sys.argv[1]):
        subprocess.run([sys.executable, __file__, seconds], check=True)
    Path(sys.argv[2], "done").touch()
    while not Path(sys.argv[2], "stop").exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
