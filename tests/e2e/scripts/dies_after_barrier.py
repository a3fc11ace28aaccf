"""torchrun, except that slot 1's first agent dies at once when ``next_rendezvous`` has returned.

By ``_exit``: as PID 1 of its container it can't send itself a SIGKILL.

Usage: dies_after_barrier.py SCRIPT ARGS...
"""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.rendezvous import RendezvousInfo

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.run import main

original = K8sRendezvousHandler.next_rendezvous


def next_rendezvous(self: K8sRendezvousHandler) -> RendezvousInfo:
    info = original(self)
    if os.environ["ELASTICJOB_POD_NAME"].endswith("-1-0"):
        os._exit(137)
    return info


K8sRendezvousHandler.next_rendezvous = next_rendezvous  # type: ignore[method-assign]
main(sys.argv[1:])
