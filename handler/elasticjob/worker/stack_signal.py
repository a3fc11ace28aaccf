"""Makes a worker write its stack at a signal while it trains (Linux); ``elasticjob.stacks`` sends it.

At a signal, Python's faulthandler writes the stack of the thread that gets it, the main thread, to a file in
memory. That needs neither the interpreter's lock nor the worker's help, so it works in the middle of a
collective, and training continues. Other threads are left out: to read their frames while they run may crash.

The file is found by its name, which has the worker's ranks: /proc shows for a warm worker the environment in
which it waited. This module is imported with the package, hence by every worker: it is light.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

SIGNAL = 50
"""A real-time signal (SIGRTMIN+16 where glibc takes two): scripts use SIGUSR1 and SIGUSR2 themselves."""
PREFIX = "elasticjob-stacks"
"""The beginning of the file's name; the pid, RANK and LOCAL_RANK follow."""
FOLDER_PREFIX = "elasticjob-steps-"
"""The beginning of the name of a round's ``$ELASTICJOB_PROGRESS_DIR``."""

_ready = False


def answer_stacks() -> None:
    """Be ready for the signal, if torchrun has started this process as a worker. Never raises: training does
    not depend on it."""
    global _ready
    rank, local_rank = os.environ.get("RANK", ""), os.environ.get("LOCAL_RANK", "")
    if sys.platform != "linux" or _ready or not rank.isdigit() or not local_rank.isdigit():
        return
    try:
        if signal.getsignal(SIGNAL) == signal.SIG_DFL:
            file = os.memfd_create(f"{PREFIX}:{os.getpid()}:{rank}:{local_rank}")
            faulthandler.register(SIGNAL, file=file, all_threads=False)
        _ready = True
    except (OSError, RuntimeError, ValueError, AttributeError):
        return
