"""The digits example, held back while the faults go on.

Usage: paced_train.py PACE_FILE [options of examples/digits/train.py]. As long as PACE_FILE is there each step
takes as many seconds longer as stand in it. So a number of steps can be chosen that is not reached before
the last fault, and that is reached soon after it; the training itself is untouched.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


def main() -> None:
    """Train."""
    pace = Path(sys.argv.pop(1))
    sys.path.insert(0, str(DIGITS))
    train: Any = importlib.import_module("train")

    class PacedStepLog(train.StepLog):  # type: ignore[misc]
        """Every rank writes to its step log once a step, most of them to none."""

        def write(self, **fields: object) -> None:
            super().write(**fields)
            try:
                seconds = float(pace.read_text())
            except FileNotFoundError:
                return
            time.sleep(seconds)

    train.StepLog = PacedStepLog
    train.main()


if __name__ == "__main__":
    main()
