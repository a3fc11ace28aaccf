"""The training under torchft: each worker is a replica group, and those that are left go on.

A replica that comes later loads the state of one that trains. The checkpoint in storage, which each group
writes, is for the case that all have ended.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp
from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found,unused-ignore]

from benchmarks.rivals.workers.model import SETTINGS, Checkpoint, Model, Stamps

TIMEOUT = timedelta(seconds=10)
"""Of a collective. gloo sees a lost peer at once, and does not wait for it."""
QUORUM_TIMEOUT = timedelta(seconds=20)
QUORUM_RETRIES = 20
"""Instead of 60 s and 0: with these a lost lighthouse is asked again about once a second."""


def main() -> None:
    """Train."""
    model, checkpoint, stamps = Model(), Checkpoint(), Stamps()
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=int(os.environ["RIVALS_MINIMUM"]),
        load_state_dict=model.load,
        state_dict=model.state,
        replica_id=f"pod-{os.environ['RIVALS_POD']}-",
        use_async_quorum=False,
        timeout=TIMEOUT,
        quorum_timeout=QUORUM_TIMEOUT,
        quorum_retries=QUORUM_RETRIES,
        hostname="127.0.0.1",
    )
    if found := checkpoint.load():
        model.load(found[1]["model"])
        manager.load_state_dict(found[1]["manager"])
    while manager.current_step() < SETTINGS["steps"]:
        time.sleep(SETTINGS["seconds"])
        manager.start_quorum()
        step, rank = manager.current_step() + 1, manager.participating_rank()
        if rank is None:
            summed = torch.zeros_like(model.gradients(step, 0, 1))
        else:
            summed = model.gradients(step, rank, manager.num_participants())
        manager.allreduce(summed, reduce_op=ReduceOp.SUM).wait()
        if manager.should_commit():
            loss = model.update(summed)
            if rank is not None:
                stamps.trained(rank, step, loss)
            if rank == 0:
                checkpoint.save(step, {"model": model.state(), "manager": manager.state_dict()})
    manager.shutdown()


if __name__ == "__main__":
    main()
