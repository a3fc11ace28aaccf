"""Buffers that CUDA knows, by a CUDA that is played here: no GPU was used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticjob.checkpoint import memory, memory_map, memory_piece
from elasticjob.checkpoint.memory import MemoryTier
from elasticjob.checkpoint.memory_map import MAPPED, PORTABLE, Mappings, copy_all
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.checkpoint.records import Token
from elasticjob.checkpoint.trust import Planner
from elasticjob.memory.shelf import make_buffer
from tests.unit.memory.agents import Pod, begin, mapped

GPU = torch.device("cuda", 0)
SIZE = 1 << 16


class CudaError:
    """What torch's functions of CUDA return: an enum that is true whatever it says."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __int__(self) -> int:
        return self._code


class Cudart:
    """Registers memory, or refuses with this code."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: dict[int, int] = {}
        self.calls = 0
        self.taken: list[torch.device] = []
        """The GPUs on which the error of a call was taken."""
        self._current: torch.device | None = None

    @contextlib.contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        self._current = device
        yield
        self._current = None

    def cudaHostRegister(self, address: int, size: int, flags: int) -> CudaError:
        assert flags == PORTABLE
        assert self._current == GPU, "another GPU gets a context"
        assert address not in self.registered, "registered twice"
        self.calls += 1
        if not self.code:
            self.registered[address] = size
        return CudaError(self.code)

    def cudaHostUnregister(self, address: int) -> CudaError:
        assert _is_mapped(address), "the mapping has ended before"
        del self.registered[address]
        return CudaError(0)


def _is_mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(
        int(begin, 16) <= address < int(end, 16)
        for begin, end in (line.split()[0].split("-") for line in lines)
    )


class Stream:
    """Writes down what happens to it."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def wait_stream(self, other: object) -> None:
        self._said.append(f"waits for {other}")

    def synchronize(self) -> None:
        self._said.append("synchronized")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All tensors count as those of a GPU. What its streams do."""
    said: list[str] = []

    @contextlib.contextmanager
    def entered(stream: object) -> Iterator[None]:
        del stream
        said.append("copies")
        yield

    monkeypatch.setattr(memory_map, "cuda_device", lambda _: GPU)
    monkeypatch.setattr(memory_piece, "cuda_device", lambda _: GPU)
    memory_map._stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(said))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"training on {device}")
    monkeypatch.setattr(torch.cuda, "stream", entered)
    return said


def played(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Cudart:
    cudart = Cudart(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: cudart.on(device))
    monkeypatch.setattr(memory_map, "_take_pending_error", cudart.taken.append)
    return cudart


@pytest.fixture
def buffers() -> Iterator[list[int]]:
    made = [make_buffer(SIZE) for _ in range(MAPPED + 1)]
    yield made
    for descriptor in made:
        os.close(descriptor)


def test_a_buffer_is_registered_once_and_before_its_mapping_ends_no_more(
    monkeypatch: pytest.MonkeyPatch, buffers: list[int]
) -> None:
    cudart, mappings = played(monkeypatch), Mappings()
    first = mappings.get(buffers[0], {GPU})
    assert cudart.registered == {first.data_ptr(): SIZE}
    assert mappings.get(buffers[0], {GPU}) is first
    del first
    for descriptor in buffers[1:]:
        mappings.get(descriptor, {GPU})
    assert (cudart.calls, len(cudart.registered)) == (MAPPED + 1, MAPPED), "the first one was let go"
    mappings.clear()
    assert not cudart.registered
    assert cudart.taken == [], "there was no error"


def test_buffers_that_have_become_too_small_are_mapped_no_more(buffers: list[int]) -> None:
    """The agent has freed them, and does not count them."""
    mappings, before = Mappings(), mapped()
    for descriptor in buffers[:2]:
        mappings.get(descriptor, ())
    assert len(mapped() - before) == 2
    grown = make_buffer(2 * SIZE)
    mappings.drop_smaller(2 * SIZE)
    mappings.get(grown, ())
    assert mapped() - before == {str(os.fstat(grown).st_ino)}
    mappings.clear()
    os.close(grown)


def test_a_state_without_gpus_asks_for_no_cuda(monkeypatch: pytest.MonkeyPatch, buffers: list[int]) -> None:
    cudart, mappings = played(monkeypatch), Mappings()
    calls = []
    for devices in (set[torch.device](), {GPU}):  # the state has moved to a GPU
        mappings.get(buffers[0], devices)
        calls.append(cudart.calls)
    assert calls == [0, 1]
    mappings.clear()


def test_where_cuda_refuses_saves_go_on_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, buffers: list[int]
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(memory_map.log, "warning", warnings.append)
    cudart = played(monkeypatch, code=2)
    mappings = Mappings()
    for descriptor in buffers:
        mappings.get(descriptor, {GPU}).fill_(1)
    mappings.clear()
    (text,) = warnings
    assert "65,536 bytes of memory were not registered with CUDA" in text
    assert "cudaHostRegister returns 2, expected 0" in text
    assert (cudart.calls, cudart.taken) == (1, [GPU]), "it is asked again, or training meets its error"


def test_views_that_are_conjugated_as_they_are_read_are_plain_before_they_are_copied(said: list[str]) -> None:
    del said
    values = torch.tensor([1 + 2j, 3 - 4j])
    sources = [values.conj(), values.conj().imag]
    assert (sources[0].is_conj(), sources[1].is_neg()) == (True, True)
    seen: list[torch.Tensor] = []

    class Target:
        def copy_(self, source: torch.Tensor, non_blocking: bool) -> None:
            assert non_blocking
            seen.append(source)

    target: Any = Target()
    copy_all([(target, source) for source in sources], {GPU})
    assert not any(source.is_conj() or source.is_neg() for source in seen)
    assert [source.tolist() for source in seen] == [[1 - 2j, 3 + 4j], [-2.0, 4.0]]


def test_all_saves_of_a_gpu_have_one_stream(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []

    def stream(device: torch.device) -> Stream:
        made.append(device)
        return Stream(said)

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    for _ in range(3):
        copy_all([(torch.zeros(3), torch.ones(3))], {GPU})
    assert made == [GPU]


def test_a_forked_process_keeps_neither_buffers_nor_the_connection_to_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker of a data loader lives on when its rank has been killed."""
    before = mapped()
    pod = Pod()
    begin(1, pod)
    worker: Any = pod.worker()
    tier = MemoryTier(worker, Ranks(60), Token(1, 1), str(tmp_path), worker.opening)
    monkeypatch.setattr(memory, "_open", [tier])
    try:
        assert tier.save(1, {"weights": torch.arange(5)})
        assert mapped() - before
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, f"{mapped() - before} {worker._sock.fileno()}".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            assert told.read() == "set() -1"
        os.waitpid(child, 0)
        assert tier.save(2, {"weights": torch.arange(5)}), "the parent's are as before"
    finally:
        tier.close()
        pod.close()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), NotImplementedError()])
def test_a_tensor_that_cannot_be_copied_ends_the_memory_tier_and_not_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    pod = Pod()
    begin(1, pod)
    worker: Any = pod.worker()
    tier = MemoryTier(worker, Ranks(60), Token(1, 1), str(tmp_path), worker.opening)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(memory_piece, "copy_all", fail)
    assert tier.save(1, {"weights": torch.arange(5)})
    assert not tier.save(2, {"weights": torch.arange(5)})
    assert (str(error) or type(error).__name__) in tier.off
    tier.close()
    pod.close()


def test_copies_begin_after_what_training_has_computed_and_have_ended_when_it_returns(
    said: list[str],
) -> None:
    targets = [torch.zeros(3), torch.zeros(2)]
    copy_all([(target, torch.ones_like(target)) for target in targets], {GPU})
    assert said == ["waits for training on cuda:0", "copies", "copies", "synchronized"]
    assert all(bool((target == 1).all()) for target in targets)


def test_no_copy_is_under_way_when_one_has_failed(said: list[str]) -> None:
    with pytest.raises(RuntimeError, match="size"):
        copy_all([(torch.zeros(3), torch.ones(2))], {GPU})
    assert said[-1] == "synchronized"


def test_an_agent_takes_a_piece_after_its_copies_have_ended(
    monkeypatch: pytest.MonkeyPatch, said: list[str], tmp_path: Path
) -> None:
    cudart, pod = played(monkeypatch), Pod()
    begin(1, pod)
    worker: Any = pod.worker()
    take = worker.take

    def taken(*piece: Any) -> None:
        said.append("taken")
        take(*piece)

    monkeypatch.setattr(worker, "take", taken)
    tier = MemoryTier(worker, Ranks(60), Token(1, 1), str(tmp_path), worker.opening)
    assert tier.save(1, {"weights": torch.arange(5)})
    assert said[-2:] == ["synchronized", "taken"]
    assert len(cudart.registered) == 1
    target = {"weights": torch.zeros(5, dtype=torch.int64)}
    (candidate,) = tier.candidates()
    assert tier.load(target, candidate, Planner(False)) == 0
    assert target["weights"].tolist() == [0, 1, 2, 3, 4]
    tier.close()
    assert not cudart.registered
    pod.close()
