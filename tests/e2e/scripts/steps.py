"""Trains until the test says stop: every step is an all_reduce, logged with its round and world size.

Usage: steps.py FOLDER. The test makes FOLDER/stop; each rank appends JSON lines to FOLDER/steps-*.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pod, number = os.environ["ELASTICJOB_POD_NAME"], int(os.environ["ELASTICJOB_ROUND"])
    step = 0
    with (folder / f"steps-{pod}-{number}-{rank}.jsonl").open("a", buffering=1) as log:
        while True:
            votes = torch.tensor([1 if (folder / "stop").exists() else 0, 1])
            dist.all_reduce(votes)
            assert votes[1].item() == world, f"the sum over {world} ranks is {votes[1].item()}"
            step += 1
            log.write(
                json.dumps({"round": number, "rank": rank, "world": world, "pod": pod, "step": step}) + "\n"
            )
            if votes[0].item() > 0:
                break
            time.sleep(0.05)  # a step of real training takes its time too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
