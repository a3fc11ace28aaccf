"""When what is in memory is enough to stop training for a change of size: one rank, real agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from elasticjob.checkpoint.memory import MemoryTier
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.checkpoint.records import Token
from tests.unit.memory.agents import Pod, begin

MakePod = Callable[..., Pod]


@pytest.mark.parametrize(("copies", "stay", "enough"), [(1, True, True), (0, True, False), (1, False, False)])
def test_it_is_enough_if_all_pods_stay_and_another_one_has_a_copy(
    pods: MakePod, tmp_path: Path, copies: int, stay: bool, enough: bool
) -> None:
    """A new pod gets nothing from one that has no network, and a pod may be lost while it starts."""
    pod, other = pods(network=copies > 0), pods()
    begin(1, *[pod, other][: 1 + copies])
    tier = MemoryTier(pod.worker(), Ranks(60), Token(1, 1), str(tmp_path))
    assert not tier.is_enough(0, 60), "nothing is saved yet"
    assert tier.save(7, {"weights": torch.arange(5)})
    if stay:
        pod.keeper.all_stay(1)
    assert tier.is_enough(7, 60) == enough
    assert not tier.is_enough(8, 60), "another step"
    tier.close()
