"""One container of the node agent's, with a process that ends when the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from devcluster.nodeagent.status import Terminated, Waiting
from devcluster.nodeagent.workload import Backoff, Workload

TURNS = range(8)
"""Of the event loop, from the start of a process to its end."""


class Unspecified(Workload):
    """A workload whose process needs no image."""

    async def _spec(self, _sandbox: Any) -> Any:
        return SimpleNamespace(env={}, cwd="/")


class Spawner:
    """A runtime whose processes fail, the first soon after its start; after the third all is over."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self.started = 0
        self.enough = asyncio.Event()

    async def spawn(self, _spec: Any) -> Any:
        self.started += 1
        if self.started == 3:
            self.enough.set()
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        exit_code = loop.create_future()
        end: Callable[[], object] = partial(exit_code.set_result, 1)
        for _ in range(self._turns):
            end = partial(loop.call_soon, end)
        end()
        return SimpleNamespace(id=f"run-{self.started}", exit_code=exit_code)


@pytest.mark.parametrize("turns", TURNS)
def test_a_process_that_ends_as_soon_as_it_has_started_is_started_again(turns: int) -> None:
    """Whether its end is heard before, while or after a thread begins to wait for it."""

    async def main() -> Workload:
        runtime = Spawner(turns)
        awake = asyncio.Event()
        awake.set()
        sandbox: Any = SimpleNamespace(
            node=SimpleNamespace(awake=awake), runtime=runtime, network=None, backoff=Backoff(0.001, 0.001)
        )
        container = {"name": "main", "image": "any"}
        workload = Unspecified(container, "main", "OnFailure", Waiting("ContainerCreating"), lambda: None)
        supervision = asyncio.create_task(workload.supervise(sandbox))
        enough = asyncio.create_task(runtime.enough.wait())
        await asyncio.wait({supervision, enough}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert runtime.started == 3, f"given up after {runtime.started} runs"
        supervision.cancel()
        return workload

    workload = asyncio.run(main())
    assert workload.status.restarts == 2
    assert isinstance(workload.status.last, Terminated)
    assert workload.status.last.exit_code == 1
