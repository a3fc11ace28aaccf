"""Trains nothing, and saves every tenth step with ``elasticjob.checkpoint``.

Usage: saves.py FOLDER. Each worker appends its steps to FOLDER/steps-*.jsonl until the test makes
FOLDER/stop. One whose save is refused, since a later round has begun, makes FOLDER/stale-<round>.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import elasticjob
from elasticjob.checkpoint import Checkpoints, StaleRoundError


def main() -> None:
    folder = Path(sys.argv[1])
    pod, number = os.environ["ELASTICJOB_POD_NAME"], int(os.environ["ELASTICJOB_ROUND"])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    state = {"weight": torch.zeros(8), "step": torch.zeros(1)}
    try:
        with (
            Checkpoints(folder / "checkpoints") as checkpoints,
            (folder / f"steps-{pod}-{number}-{rank}.jsonl").open("a", buffering=1) as log,
        ):
            step = checkpoints.resume(state)
            over = torch.zeros(1)
            while not over.item():
                step += 1
                over += (folder / "stop").exists()
                dist.all_reduce(over)
                log.write(
                    json.dumps({"round": number, "rank": rank, "world": world, "pod": pod, "step": step})
                    + "\n"
                )
                elasticjob.report_progress(step)
                time.sleep(0.05)
                if step % 10 == 0:
                    checkpoints.save(step, state)
    except StaleRoundError:
        (folder / f"stale-{number}").touch()
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
