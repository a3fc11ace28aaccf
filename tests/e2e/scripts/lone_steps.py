"""Steps that need no other rank: no collective, no torch, so no worker fails when another member is gone.

Usage: lone_steps.py FOLDER [MODULE]. Each worker appends JSON lines to FOLDER/steps-*.jsonl until the test
makes FOLDER/stop. With MODULE a process of its own imports that module again and again beside the steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    folder, modules = Path(sys.argv[1]), sys.argv[2:]
    pod, number, rank = (os.environ[key] for key in ("ELASTICJOB_POD_NAME", "ELASTICJOB_ROUND", "RANK"))
    step = {"round": int(number), "rank": int(rank), "world": int(os.environ["WORLD_SIZE"]), "pod": pod}
    importing: subprocess.Popen[bytes] | None = None
    imports = 0
    with (folder / f"steps-{pod}-{number}-{rank}.jsonl").open("a", buffering=1) as log:
        while not (folder / "stop").exists():
            if modules and (importing is None or importing.poll() is not None):
                importing = subprocess.Popen([sys.executable, "-c", f"import {modules[0]}"])
                imports += 1
            log.write(json.dumps({**step, "imports": imports, "time": time.time()}) + "\n")
            time.sleep(0.05)
    if importing is not None:
        importing.kill()
        importing.wait()


if __name__ == "__main__":
    main()
