"""The buffers of the agent as this process has them mapped, and how a state is copied into them.

Tensors of a GPU are copied at the speed of its bus only into memory that CUDA knows. So a buffer that gets
one is registered once, when it is mapped, and taken off the list before the mapping may end. The copies run
in a stream of their own, which begins after what training has computed so far.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any

import torch

from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

MAPPED = 3
"""How many buffers stay mapped: two are used in turn, and a third while the agent replaces one."""
PORTABLE = 1
"""``cudaHostRegisterPortable``: the memory is registered for all GPUs that this process uses."""


class Mappings:
    """The buffers that this process has mapped, by inode."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}
        self._registered: dict[int, torch.device] = {}
        self._refused = False

    def get(self, descriptor: int, devices: Collection[torch.device]) -> torch.Tensor:
        """A buffer as a tensor; mapped once, because that touches all of its pages. ``devices``: the GPUs
        whose tensors will be copied into it."""
        status = os.fstat(descriptor)
        memory = self._buffers.pop(status.st_ino, None)
        if memory is None:
            with torch.inference_mode(False):  # one that is made in it cannot be written outside of it
                memory = torch.frombuffer(mmap.mmap(descriptor, status.st_size), dtype=torch.uint8)
        self._buffers[status.st_ino] = memory
        if devices and status.st_ino not in self._registered and not self._refused:
            device = next(iter(devices))
            if self._register(memory, device):
                self._registered[status.st_ino] = device
        while len(self._buffers) > MAPPED:
            self._let_go(next(iter(self._buffers)))
        return memory

    def drop_smaller(self, size: int) -> None:
        """Let go of those that have become too small for ``size`` bytes: the agent frees them, and does not
        count what a mapping keeps."""
        for small in [inode for inode, one in self._buffers.items() if one.numel() < size]:
            self._let_go(small)

    def clear(self) -> None:
        """Let all of them go."""
        while self._buffers:
            self._let_go(next(iter(self._buffers)))

    def forget(self) -> None:
        """In a forked process: unmap them. CUDA's list is the parent's, and a fork may not use CUDA."""
        self._registered.clear()
        self._buffers.clear()

    def _let_go(self, inode: int) -> None:
        memory = self._buffers.pop(inode)
        device = self._registered.pop(inode, None)
        if device is not None and int(_cudart().cudaHostUnregister(memory.data_ptr())):
            _take_pending_error(device)

    def _register(self, memory: torch.Tensor, device: torch.device) -> bool:
        """Whether CUDA knows this memory now. Where it refuses, copies are only slower: it is asked no more,
        as each attempt may take long."""
        try:
            with torch.cuda.device(device):  # another one would get a context of this process
                code = int(_cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), PORTABLE))
            problem = f"cudaHostRegister returns {code}, expected 0" if code else ""
        except (RuntimeError, AttributeError) as error:
            problem = str(error)
        if problem:
            self._refused = True
            _take_pending_error(device)
            log.warning(
                f"memory checkpoints: {memory.numel():,} bytes of memory were not registered with CUDA, so "
                f"saves stop training for longer: {problem}"
            )
        return not problem


def _take_pending_error(device: torch.device) -> None:
    """CUDA keeps the error of a call, and torch raises it after the next kernel that this thread launches: of
    this one, instead of one of the script's."""
    with suppress(RuntimeError):
        torch.empty(1, device=device).fill_(1)


def _cudart() -> Any:
    """CUDA's functions, which torch gives no types."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return runtime


def cuda_device(tensor: torch.Tensor) -> torch.device | None:
    """The GPU that a tensor is on; None for any other device."""
    return tensor.device if tensor.device.type == "cuda" else None


def copy_all(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], devices: Collection[torch.device]) -> None:
    """Copy each second tensor into the first. ``devices`` are the GPUs of the second ones. All copies are
    complete when this returns, and when it raises none is under way.

    A view that torch conjugates or negates as it is read is made plain before: torch would do that to the
    target, at once, while the copy from the GPU is still under way (aten/src/ATen/native/cuda/Copy.cu).
    """
    with _streams(devices) as streams:
        for target, source in pairs:
            device = cuda_device(source)
            if device is None:
                target.copy_(source)
            else:
                with torch.cuda.stream(streams[device]):
                    target.copy_(source.resolve_conj().resolve_neg(), non_blocking=True)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The same one for all saves: what torch allocates for a copy stays with the stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _streams(devices: Collection[torch.device]) -> Iterator[dict[torch.device, torch.cuda.Stream]]:
    """A stream for each GPU, which begins after what was computed there; at the end all have ended."""
    streams: dict[torch.device, torch.cuda.Stream] = {}
    with ExitStack() as stack:
        for device in devices:
            stream = streams[device] = _stream(device)
            stack.callback(stream.synchronize)
            stream.wait_stream(torch.cuda.current_stream(device))
        yield streams
