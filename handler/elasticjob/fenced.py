"""Whether all workers of a round save with ``elasticjob.checkpoint``.

That refuses what an earlier round saves. A worker that has opened ``Checkpoints`` leaves the file
``<LOCAL_RANK>.fenced`` in ``$ELASTICJOB_PROGRESS_DIR``, which is a new folder for each round. The agent says
in the round's store when all of its workers have, and the leader in its Lease when all agents have. If the
whole round is lost later, the operator need not wait for proof that it has stopped.
"""

from __future__ import annotations

import contextlib
import os

from elasticjob.contract.names import ROUND_ENV
from elasticjob.progress import PROGRESS_DIR_ENV

SUFFIX = ".fenced"


def say() -> None:
    """From a worker: this round has been claimed in the checkpoint folder. Does nothing outside an
    ElasticJob: without a round's number a claim is no fence. Never raises: without the file the operator
    waits for proof."""
    folder, local_rank = os.environ.get(PROGRESS_DIR_ENV, ""), os.environ.get("LOCAL_RANK", "")
    if folder and local_rank.isdigit() and os.environ.get(ROUND_ENV):
        with contextlib.suppress(OSError), open(os.path.join(folder, local_rank + SUFFIX), "wb"):
            pass


def all_say(folder: str, workers: int | None) -> bool:
    """On the agent: whether all of its workers have said so. Without a folder, or where the number of
    workers is not known, none has."""
    return bool(folder and workers) and all(
        os.path.exists(os.path.join(folder, f"{rank}{SUFFIX}")) for rank in range(workers or 0)
    )
