"""Shows whether all workers of a round save with ``elasticjob.checkpoint``, which refuses saves of earlier
rounds.

A process that has opened ``Checkpoints`` makes a file, named after itself, in ``$ELASTICJOB_PROGRESS_DIR``, a
new folder for each round. The agent says in the round's store when all of its workers have one, and the
leader in its Lease when all agents have said so. If the whole round is lost later, the operator need not wait
for proof that it has stopped.
"""

from __future__ import annotations

import contextlib
import os

from elasticjob.contract.names import ROUND_ENV
from elasticjob.worker.progress import PROGRESS_DIR_ENV, own_name

SUFFIX = ".fenced"


def say() -> None:
    """Say that this worker's round has been claimed in the checkpoint folder. Does nothing outside an
    ElasticJob: without a round's number a claim is no fence. Never raises: without the file the operator
    waits for proof."""
    folder = os.environ.get(PROGRESS_DIR_ENV, "")
    if folder and os.environ.get(ROUND_ENV):
        with contextlib.suppress(OSError), open(os.path.join(folder, own_name() + SUFFIX), "wb"):
            pass
