"""Steps with a collective, and a hang in round 1: rank 1 blocks outside Python, the others in the collective.

Round 1 hangs at step 5; later rounds begin there and end at step 8. Every worker has a second thread, which
waits.
"""

from __future__ import annotations

import os
import threading

import torch
import torch.distributed as dist

from elasticjob import report_progress

HANG_STEP, LAST_STEP = 5, 8


def the_other_thread(end: threading.Event) -> None:
    end.wait()


def the_stuck_one() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # in C: no signal handler written in Python can run


def train_one_step() -> None:
    dist.all_reduce(torch.ones(1))


def main() -> None:
    dist.init_process_group("gloo")
    end = threading.Event()
    threading.Thread(target=the_other_thread, args=(end,), daemon=True).start()
    first_round = os.environ["ELASTICJOB_ROUND"] == "1"
    for step in range(0 if first_round else HANG_STEP, LAST_STEP + 1):
        if first_round and step == HANG_STEP and dist.get_rank() == 1:
            the_stuck_one()
        train_one_step()
        report_progress(step)
    dist.destroy_process_group()
    end.set()


if __name__ == "__main__":
    main()
