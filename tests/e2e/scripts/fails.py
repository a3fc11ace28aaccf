"""The highest rank fails in the first round as it is told to; in later ones all ranks wait for the test.

Usage: fails.py FOLDER HOW [record]. HOW is raise, exit, abort or kill. With several ranks the others are in a
collective and die of it. The test makes FOLDER/stop.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def fail(how: str, in_group: bool = False) -> None:
    if how == "raise":
        raise ValueError("bad input 7")
    if how == "exit":
        if in_group:
            # An interpreter that ends with a gloo group now and then aborts on its way out: -6 instead of 42.
            os._exit(42)
        sys.exit(42)
    if how == "abort":
        os.abort()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ["ELASTICJOB_ROUND"] != "1":
        while not (Path(sys.argv[1]) / "stop").exists():
            time.sleep(0.05)
        return
    if world == 1:
        fail(sys.argv[2])
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if rank == world - 1:
        fail(sys.argv[2], in_group=True)
    dist.all_reduce(torch.ones(1))


if "record" in sys.argv[3:]:
    from torch.distributed.elastic.multiprocessing.errors import record

    main = record(main)

if __name__ == "__main__":
    main()
