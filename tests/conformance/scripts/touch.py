"""A training script that needs no torch: each worker makes the file FOLDER/RANK, and fails on ``--fail``.

(The word TORCHDYNAMO here keeps warm workers from importing torch._dynamo for it.)

With ``--gate`` it says ``here-RANK`` first and waits until FOLDER/go is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    rank = os.environ["RANK"]
    if "--gate" in sys.argv:
        (folder / f"here-{os.environ['ELASTICJOB_ROUND']}-{rank}").touch()
        deadline = time.monotonic() + 120
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    if "--fail" in sys.argv:
        raise RuntimeError("this script was told to fail")
    (folder / rank).write_text(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    main()
