"""Another controller, for jobs without a template: an Indexed Job, or plain pods."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob_operator.plan.state.model import Pod
from tests.simulation.api import Api
from tests.simulation.kernel import Kernel


class Workload:
    """Keeps one pod for each index. ``wanted`` tells how many, 0 once the job has ended."""

    def __init__(self, kernel: Kernel, api: Api, wanted: Callable[[], int]) -> None:
        self._kernel = kernel
        self._api = api
        self._wanted = wanted
        self._made = 0
        self.indexed = kernel.rng.random() < 0.7
        kernel.after(0.1, self._sync)

    def _sync(self) -> None:
        held: set[int] = set()
        for key, item in self._api.items.items():
            if key[0] != "pod" or item.value.deleting:
                continue
            if not item.value.ended or item.value.exit.code == 0:
                held.add(int(key[1].split("-")[1]))
        for index in range(self._wanted()):
            if index not in held:
                self._made += 1
                name = f"others-{index}-{self._kernel.rng.getrandbits(20):05x}"
                uid = f"other-{self._made}"
                self._api.create(("pod", name), Pod(name, uid, slot=index if self.indexed else None), uid)
        self._kernel.after(self._kernel.between(0.5, 3.0), self._sync)
