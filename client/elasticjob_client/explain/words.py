"""Words that stand in many sentences: pure."""

from __future__ import annotations

PLAIN_TORCHRUN = (
    "the command must be `torchrun train.py`, without --standalone, --nnodes, --rdzv-backend, "
    "--rdzv-endpoint or --rdzv-id"
)
"""What the operator expects of a job's command: it sets these flags by the environment."""
