"""Lets a worker be asked for its stack while it trains (Linux): ``elasticjob.stacks`` asks.

At a signal, Python's faulthandler writes the stack of the thread that gets it, the main thread, to a file in
memory. That needs neither the interpreter's lock nor the worker's help, so it works in the middle of a
collective, and it ends nothing. Other threads are left out: to read their frames while they run may crash.

The file has the worker's ranks in its name, which is how it is found: a warm worker's environment, as the
kernel knows it, is that of its waiting. This module is imported with the package, hence by every worker: it
is light.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

SIGNAL = 50
"""A real-time signal (SIGRTMIN+16 where glibc takes two): scripts use SIGUSR1 and SIGUSR2 themselves."""
PREFIX = "elasticjob-stacks"
"""The file's name begins so; then follow the process's id, RANK and LOCAL_RANK."""
FOLDER_PREFIX = "elasticjob-steps-"
"""Beginning of the name of a round's folder."""

_ready = False


def answer_stacks() -> None:
    """Be ready to be asked, if torchrun has started this process as a worker. Never raises: training goes on
    without it."""
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
