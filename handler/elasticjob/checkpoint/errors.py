"""What can be wrong with checkpoints: the errors that a script may catch."""


class CheckpointError(RuntimeError):
    """The base of this package's errors about checkpoints."""


class StaleRoundError(CheckpointError):
    """A later round, or another job, holds the folder: this process must not write."""


class DamagedError(CheckpointError):
    """No checkpoint of the folder can be read."""


class NotSharedError(CheckpointError):
    """The ranks do not see the same files."""


class NoSpaceError(CheckpointError):
    """The disk, or the quota, is full."""


class LostRankError(CheckpointError):
    """A collective of all ranks has failed: a rank was lost, took too long, or cannot be reached."""
