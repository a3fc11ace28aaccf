"""A real torchrun with the backend k8s, whose Leases are in memory: each announcement gets a round."""

from __future__ import annotations

import logging
import sys
import threading

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.run import main

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.settings import read_settings
from elasticjob.contract import names
from tests.unit.handler.joining import form
from tests.unit.memory_api import Leases, MemoryApi


def rounds(leases: Leases) -> None:
    before, number = "", 0
    while True:
        try:
            leases.announced("a", but=before)
        except AssertionError:
            continue  # a round may last
        number += 1
        before = form(leases, number, "a").member_ids[0]


def create(params: RendezvousParameters) -> RendezvousHandler:
    leases = Leases()
    threading.Thread(target=rounds, args=(leases,), daemon=True).start()
    config = {key: value for key, value in params.config.items() if value is not None}
    settings = read_settings("ns/job", {"pod": "a", "pod_uid": "uid-a", **config}, None)
    return K8sRendezvousHandler(settings, params.run_id, lambda: MemoryApi(leases))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rendezvous_handler_registry._registry[names.BACKEND] = create  # in place of the entry point's
    main([f"--rdzv-backend={names.BACKEND}", "--rdzv-id=run", "--nnodes=1", *sys.argv[1:]])
