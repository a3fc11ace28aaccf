"""The buffers of the agent as this process has them mapped, and how a state is copied into them.

Tensors of a GPU are copied at the speed of its bus only into memory that CUDA knows. So a buffer that gets
one is registered once, when it is mapped, and taken off the list before the mapping may end. The copies run
in a stream of their own, which begins after what training has computed so far.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

MAPPED = 3
"""How many buffers stay mapped: two are used in turn, and a third while the state grows."""
PORTABLE = 1
"""``cudaHostRegisterPortable``: the memory is registered for all GPUs that this process uses."""


class Mappings:
    """The buffers that this process has mapped, by inode."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}
        self._registered: set[int] = set()
        self._said = False

    def get(self, descriptor: int, *, for_cuda: bool) -> torch.Tensor:
        """A buffer as a tensor; mapped once, because that touches all of its pages. ``for_cuda``: tensors of
        a GPU will be copied into it."""
        status = os.fstat(descriptor)
        memory = self._buffers.pop(status.st_ino, None)
        if memory is None:
            memory = torch.frombuffer(mmap.mmap(descriptor, status.st_size), dtype=torch.uint8)
        self._buffers[status.st_ino] = memory
        if for_cuda and status.st_ino not in self._registered and self._register(memory):
            self._registered.add(status.st_ino)
        while len(self._buffers) > MAPPED:
            self._let_go(next(iter(self._buffers)))
        return memory

    def clear(self) -> None:
        """Let all of them go."""
        while self._buffers:
            self._let_go(next(iter(self._buffers)))

    def _let_go(self, inode: int) -> None:
        memory = self._buffers.pop(inode)
        if inode in self._registered:
            self._registered.discard(inode)
            _cudart().cudaHostUnregister(memory.data_ptr())

    def _register(self, memory: torch.Tensor) -> bool:
        """Whether CUDA knows this memory now. Where it refuses, copies are only slower."""
        try:
            code = int(_cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), PORTABLE))
            problem = f"cudaHostRegister returns {code}, expected 0" if code else ""
        except (RuntimeError, AttributeError) as error:
            problem = str(error)
        if problem and not self._said:
            self._said = True
            log.warning(
                f"memory checkpoints: {memory.numel():,} bytes of memory were not registered with CUDA, so "
                f"saves stop training for longer: {problem}"
            )
        return not problem


def _cudart() -> Any:
    """CUDA's functions, which torch gives no types."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return runtime


def cuda_device(tensor: torch.Tensor) -> torch.device | None:
    """The GPU that a tensor is on; None for any other device."""
    return tensor.device if tensor.device.type == "cuda" else None


def copy_all(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], devices: Collection[torch.device]) -> None:
    """Copy each second tensor into the first. ``devices`` are the GPUs of the second ones. All copies are
    complete when this returns, and when it raises none is under way."""
    with _streams(devices) as streams:
        for target, source in pairs:
            device = cuda_device(source)
            if device is None:
                target.copy_(source)
            else:
                with torch.cuda.stream(streams[device]):
                    target.copy_(source, non_blocking=True)


@contextmanager
def _streams(devices: Collection[torch.device]) -> Iterator[dict[torch.device, torch.cuda.Stream]]:
    """A stream for each GPU, which begins after what was computed there; at the end all have ended."""
    streams: dict[torch.device, torch.cuda.Stream] = {}
    with ExitStack() as stack:
        for device in devices:
            stream = streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stack.callback(stream.synchronize)
            stream.wait_stream(torch.cuda.current_stream(device))
        yield streams
