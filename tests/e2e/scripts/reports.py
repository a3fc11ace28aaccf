"""Trains as steps.py does, reports its steps, and resumes from the last one that rank 0 has noted.

Usage: reports.py FOLDER. The test makes FOLDER/stop; each rank prints every tenth step.
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


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pod, number = os.environ["ELASTICJOB_POD_NAME"], int(os.environ["ELASTICJOB_ROUND"])
    noted = folder / "noted"
    resumed = torch.tensor([int(noted.read_text()) if rank == 0 and noted.exists() else 0])
    dist.broadcast(resumed, 0)
    step = int(resumed.item())
    print(f"rank {rank} of {world} resumes from step {step} in round {number}", flush=True)
    with (folder / f"steps-{pod}-{number}-{rank}.jsonl").open("a", buffering=1) as log:
        while True:
            votes = torch.tensor([1 if (folder / "stop").exists() else 0])
            dist.all_reduce(votes)
            step += 1
            log.write(
                json.dumps({"round": number, "rank": rank, "world": world, "pod": pod, "step": step}) + "\n"
            )
            elasticjob.report_progress(step)
            if rank == 0:
                noted.with_suffix(".new").write_text(str(step))
                noted.with_suffix(".new").replace(noted)
            if step % 10 == 0:
                print(f"rank {rank} step {step}", flush=True)
            if votes.item() > 0:
                break
            time.sleep(0.05)  # a step of real training takes its time too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
