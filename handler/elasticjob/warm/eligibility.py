"""Whether a worker may start warm: only if nothing can tell it from a cold start. This is the agent's part of
the decision; ``elasticjob.warm.boot`` checks what only the interpreter can see.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

PER_ROUND = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_TIMER_FILE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "ELASTICJOB_ROUND",
        "ELASTICJOB_PROGRESS_DIR",
        "ELASTICJOB_MEMORY_AGENT",
    }
)
"""The variables that depend on the round. No import of torch reads them (measured), so they may be set
later."""
IMPORTS = ("torch", "torch.distributed")
OPTIMIZER_IMPORT = "torch._dynamo"
"""The first optimizer imports it, and that takes as long as torch itself."""
CHECKPOINT_IMPORTS = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict")
"""What ``elasticjob.checkpoint`` imports of torch. It imports half of ``torch._dynamo``'s modules, so it is
left to the script together with that. ``elasticjob.checkpoint`` itself is left to the script always: it
reads variables of the round."""
CHECKPOINT_WORDS = ("elasticjob.checkpoint", "torch.distributed.checkpoint")
"""A script with checkpoints has one of these in its text."""
READ_BY_OPTIMIZER_IMPORT = (
    "TORCHDYNAMO",
    "TORCHINDUCTOR",
    "TORCH_COMPILE",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "TORCH_FX",
    "TRITON",
    "AOT_",
    "FUNCTORCH",
)
"""Beginnings of variables that it reads. A script may set them after ``import torch``: if its text has one of
these words, ``torch._dynamo`` is left to the script."""


@dataclass(frozen=True)
class Start:
    """The start of a worker by torch: command line, environment, folder."""

    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


@dataclass(frozen=True)
class Starts:
    """How many workers of this agent started warm and cold in a round, as in a ``StartsReport``."""

    warm: int = 0
    cold: int = 0
    cold_reason: str = ""
    """Why the first of ``cold`` did."""
    preparing: bool = False
    """The round's leader does not know yet that all members' interpreters for the next round are ready."""

    def with_warm(self) -> Starts:
        """Count one more warm start."""
        return replace(self, warm=self.warm + 1)

    def with_cold(self, why: str) -> Starts:
        """Count one more cold start, for this reason."""
        return replace(self, cold=self.cold + 1, cold_reason=self.cold_reason or why)

    def turned_cold(self, why: str) -> Starts:
        """Count one that was counted as warm as cold."""
        return replace(self, warm=max(0, self.warm - 1)).with_cold(why)


def refusal(args: Sequence[str], executable: str) -> str:
    """Why no worker with this command may be warm, "" if it may. ``executable`` is torchrun's own Python."""
    if not args or args[0] != executable:
        return f"its command is not this Python but {args[0][:80] if args else 'empty'}"
    if len(args) < 3 or args[1] != "-u":
        return "its command is not `python -u SCRIPT` or `python -u -m MODULE`"
    if args[2] == "-m":
        return "" if len(args) > 3 else "its command names no module"
    if args[2].startswith("-"):
        return f"its command has Python's option {args[2][:80]}"
    return "" if args[2].endswith(".py") else f"{args[2][:80]} is not a file *.py"


def fixed(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that depend on the round."""
    return {name: value for name, value in env.items() if name not in PER_ROUND}


def mismatch(made: Start, wanted: Start) -> str:
    """Why the interpreter that was made for ``made`` can't be the worker ``wanted``, "" if it can."""
    if made.args != wanted.args:
        return "its command line is another"
    if made.cwd != wanted.cwd:
        return "the working directory is another"
    before, now = fixed(made.env), fixed(wanted.env)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return f"its environment is another: {', '.join(changed[:5])}" if changed else ""


def imports(script: str, more: Collection[str]) -> tuple[str, ...]:
    """The modules to import beforehand for a script with this text, in this order."""
    first: tuple[str, ...] = IMPORTS
    if not any(name in script for name in READ_BY_OPTIMIZER_IMPORT):
        first = (*IMPORTS, OPTIMIZER_IMPORT)
        if any(word in script for word in CHECKPOINT_WORDS):
            first = (*first, *CHECKPOINT_IMPORTS)
    return (*first, *(name for name in more if name not in first))


def can_be_left_out(name: str, more: Collection[str]) -> bool:
    """Whether this module is imported only because the user says so."""
    return name in more and name not in (*IMPORTS, OPTIMIZER_IMPORT)


def script_path(start: Start) -> str:
    """The file that the command names, "" for a module."""
    return "" if start.args[2] == "-m" else os.path.join(start.cwd, start.args[2])
