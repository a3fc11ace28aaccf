"""``per_rank``: the states of all ranks in one entry, and what becomes of them with other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasticjob.data import per_rank
from elasticjob.data.per_rank import PerRank


class Loader:
    """It goes on after what it has read, as StatefulDataLoader does."""

    def __init__(self, first: Any) -> None:
        self.first = first
        self.read = 0
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        while self.read < 5:
            self.read += 1
            yield self.first + self.read

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"read": self.read, "first": self.first}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.read, self.first = state_dict["read"], state_dict["first"]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process a rank of so many, whose loaders have other states."""

    def become(rank: int, ranks: int, others: dict[str, Any] | None = None) -> None:
        def gather(everywhere: list[Any], mine: Any) -> None:
            everywhere[:] = [mine if number == rank else others for number in range(ranks)]

        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
        monkeypatch.setattr(dist, "all_gather_object", gather)

    return become


def begun(loader: Any, batches: int) -> PerRank:
    wrapped = per_rank(loader)
    for _ in zip(range(batches), wrapped, strict=False):
        pass
    return wrapped


def test_each_rank_goes_on_where_it_was(ranks: Any) -> None:
    ranks(1, 3, {"read": 4, "first": 200})
    state = begun(Loader(100), 2).state_dict()
    assert set(state) == {"states"}
    assert isinstance(state["states"], str)
    for rank, left in ((1, [103, 104, 105]), (0, [205])):
        ranks(rank, 3)
        again = per_rank(Loader(0))
        again.load_state_dict(state)
        assert list(again) == left


def test_without_a_process_group_there_is_one_rank() -> None:
    state = begun(Loader(0), 3).state_dict()
    again = per_rank(Loader(0))
    again.load_state_dict(state)
    assert list(again) == [4, 5]


def test_another_number_of_ranks_is_refused_or_told(ranks: Any) -> None:
    ranks(1, 3, {"read": 4, "first": 200})
    state = begun(Loader(100), 2).state_dict()
    ranks(1, 2)
    with pytest.raises(
        ValueError, match="the states of the loaders were saved by 3 ranks, and now there are 2: "
    ):
        per_rank(Loader(0)).load_state_dict(state)
    said: list[tuple[int, int]] = []
    loader = Loader(7)
    otherwise = per_rank(loader, otherwise=lambda then, now: said.append((then, now)))
    otherwise.load_state_dict(state)
    assert said == [(3, 2)]
    assert (loader.first, loader.read) == (7, 0)
    assert otherwise.state_dict() == {"states": ""}, "what does not fit is not saved again"


def test_a_loader_that_has_not_begun_is_not_asked() -> None:
    """A StatefulDataLoader would start its workers, and resuming asks for the state before it loads one."""
    loader = Loader(0)
    wrapped = per_rank(loader)
    assert wrapped.state_dict() == {"states": ""}
    wrapped.load_state_dict({"states": ""})
    state = begun(Loader(0), 2).state_dict()
    wrapped.load_state_dict(state)
    assert wrapped.state_dict() == state, "a save before the first batch keeps what was loaded"
    assert loader.asked == 0
    assert next(iter(wrapped)) == 3
    assert wrapped.state_dict() != state
    assert loader.asked == 1


def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved() -> None:
    wrapped = begun(Loader(torch.tensor(1.0)), 1)
    assert wrapped.state_dict()["states"]
    loader = begun(Loader(0), 1)
    loader._loader.first = Loader(0)  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="add_safe_globals"):
        loader.state_dict()
