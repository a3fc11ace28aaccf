"""steps.py with a checkpoint of its own and reported steps, of which one hangs in round 1.

Usage: hangs.py FOLDER. At step 40 of round 1 rank 1 sleeps for ever, and all others wait for it inside gloo.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob import report_progress


def stuck_for_ever() -> None:
    """What the stack dump must name."""
    while True:
        time.sleep(3600)


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pod, number = os.environ["ELASTICJOB_POD_NAME"], int(os.environ["ELASTICJOB_ROUND"])
    checkpoint = folder / "checkpoint"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with (folder / f"steps-{pod}-{number}-{rank}.jsonl").open("a", buffering=1) as log:
        while True:
            if number == 1 and step == 40 and rank == 1:
                stuck_for_ever()
            votes = torch.tensor([1 if (folder / "stop").exists() else 0])
            dist.all_reduce(votes)
            step += 1
            if rank == 0 and step % 10 == 0:
                checkpoint.write_text(str(step))
            report_progress(step)
            log.write(
                json.dumps({"round": number, "rank": rank, "world": world, "pod": pod, "step": step}) + "\n"
            )
            if votes[0].item() > 0:
                break
            time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
