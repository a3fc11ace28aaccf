"""Checkpoints of elastic training: the newest complete one, agreed on by all ranks and fenced by the round.

torch.distributed.checkpoint writes and loads the shards; ``Checkpoints`` adds what a run that is restarted
with other members needs: which checkpoint counts, that a leftover of an earlier round spoils none, that a
damaged one is passed over, and how many remain. docs/use/checkpoints.md says what is guaranteed where.

Importing this imports torch; ``elasticjob`` itself does not import it.
"""

from elasticjob.checkpoint.checkpoints import Checkpoints
from elasticjob.checkpoint.errors import (
    CheckpointError,
    DamagedError,
    LostRankError,
    NoSpaceError,
    NotSharedError,
    StaleRoundError,
)
from elasticjob.checkpoint.state import TrainState
from elasticjob.checkpoint.trust import UntrustedError

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "DamagedError",
    "LostRankError",
    "NoSpaceError",
    "NotSharedError",
    "StaleRoundError",
    "TrainState",
    "UntrustedError",
]
