"""torch's own agent in this process, with our handler and real workers; rounds are published by a thread."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.contract.round_record import RoundRecord
from tests.unit.handler.joining import form
from tests.unit.memory_api import Leases, broken

SECONDS = 60.0
TAKEN_OVER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Rounds:
    """Rounds of the one pod ``a``, as the operator would publish them."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.record: RoundRecord | None = None

    def next(self, **fields: Any) -> RoundRecord:
        """Wait for the agent's announcement, and publish the next round."""
        last = self.record
        number = 1 if last is None else last.number + 1
        self._leases.announced("a", but="" if last is None else last.member_ids[0])
        self.record = form(self._leases, number, "a", **fields)
        return self.record

    def end(self, cause: str = "Test") -> None:
        """The record says that the round is over."""
        assert self.record is not None
        self._leases.publish(broken(self.record, cause))

    def complete(self) -> None:
        """Wait for the agent's announcement, and say that the job is over: it ends."""
        assert self.record is not None
        self._leases.announced("a", but=self.record.member_ids[0])
        over = RoundRecord("uid", self.record.number, "Closed", outcome="Complete", message="by the test")
        self._leases.publish(over)


def run_agent(
    handler: K8sRendezvousHandler,
    folder: Path,
    script: str,
    operator: Callable[[], None],
    nproc: int = 1,
    **flags: Any,
) -> None:
    """Run the agent in this thread, the main one, and ``operator`` in another, until the agent has ended.
    ``flags``: those of torchrun that an agent gets."""
    path = folder / "worker.py"
    path.write_text(script)
    args = ("-u", str(path), str(folder))
    spec = WorkerSpec(
        "default",
        nproc,
        handler,
        entrypoint=sys.executable,
        args=args,
        max_restarts=9,
        monitor_interval=0.05,
        **flags,
    )
    agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=str(folder / "logs")))
    errors: list[BaseException] = []

    def operate() -> None:
        try:
            operator()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    with _signals_kept():
        thread = threading.Thread(target=operate, daemon=True)
        thread.start()
        try:
            agent.run()
        except SystemExit:  # the job is complete
            pass
        except BaseException:
            if not errors:
                raise
        finally:
            handler.shutdown()
        thread.join(SECONDS)
    if errors:
        raise errors[0]


@contextmanager
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in TAKEN_OVER}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
