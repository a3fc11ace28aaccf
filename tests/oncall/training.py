"""The script of every job: what goes wrong in it stands in FOLDER/mode, which no reader sees.

Usage: train.py FOLDER. Every step is an all_reduce; rank 0 saves the step, and every round begins from it.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from elasticjob import report_progress

BUG_STEP, HANG_STEP, LOST_STEP = 120, 60, 40


@record
def main() -> None:
    folder = Path(sys.argv[1])
    mode = (folder / "mode").read_text()
    dist.init_process_group("gloo")
    rank, number = dist.get_rank(), int(os.environ["ELASTICJOB_ROUND"])
    saved = folder / "checkpoint"
    step = int(saved.read_text()) if saved.exists() and mode != "saves nothing" else 0
    while True:
        if mode == "bug" and step == BUG_STEP and rank == 1:
            raise ValueError(f"loss is nan at step {step}")
        if mode == "hang" and step == HANG_STEP and rank == 1 and number == 1:
            time.sleep(3600)
        if mode == "saves nothing" and step == LOST_STEP and rank == 1:
            os._exit(1)
        dist.all_reduce(torch.ones(1))
        step += 1
        if rank == 0 and step % 10 == 0:
            saved.with_suffix(".new").write_text(str(step))
            saved.with_suffix(".new").rename(saved)
        report_progress(step)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
