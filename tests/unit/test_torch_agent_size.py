"""How many workers torch's agent starts, as the participant record says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from torch.distributed.elastic.agent.server.api import ElasticAgent

from elasticjob.workers.torch_agent import local_world_size


def agent(size: object) -> ElasticAgent:
    group = SimpleNamespace(spec=SimpleNamespace(local_world_size=size))
    return cast(ElasticAgent, SimpleNamespace(get_worker_group=lambda: group))


@pytest.mark.parametrize(("size", "said"), [(8, 8), (0, None), ("gpu", None)])
def test_it_is_what_torch_has_decided(size: object, said: int | None) -> None:
    """Not what PET_NPROC_PER_NODE says: a flag wins over it, and "gpu" is no number."""
    assert local_world_size(agent(size)) == said


def test_what_can_not_be_known_is_not_said() -> None:
    assert local_world_size(None) is None
    assert local_world_size(cast(ElasticAgent, object())) is None
