"""What workers do. Functions with plain arguments; torch is imported inside, the test needs only the names.

Workers that shall be hurt at a known moment say that they are there by a file ``<tag>-<round>-<rank>`` in a
folder of the test and go on when the test opens the gate, the file ``go``.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

GATE_SECONDS = 120.0

ENVIRONMENT = (
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "GROUP_RANK",
    "LOCAL_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "ELASTICJOB_ROUND",
)
"""What a worker of torchrun finds, and the round, which is ours."""


@dataclass(frozen=True)
class RankInfo:
    """A worker's ranks and sizes as its environment tells them."""

    rank: int
    role_rank: int
    group_rank: int
    role_world_size: int
    world_size: int


def rank() -> int:
    """This worker's global rank."""
    return int(os.environ["RANK"])


def happy() -> None:
    """Nothing."""


def sad() -> None:
    """Fail."""
    raise RuntimeError("sad because I throw")


def bipolar() -> None:
    """Fail on odd ranks."""
    if rank() % 2:
        sad()


def bipolar_sleep(seconds: float) -> None:
    """Fail on odd ranks, sleep on even ones."""
    if rank() % 2:
        sad()
    time.sleep(seconds)


def compute() -> Any:
    """A tensor of a known shape."""
    import torch

    return torch.rand(100, 100)


def compute_after_one_kill() -> Any:
    """Rank 1 is killed in its first attempt; else a tensor."""
    if rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return compute()


def echo(text: str) -> str:
    """Its argument."""
    return text


def environment() -> dict[str, str]:
    """The part of the environment that torch and we promise. Raises KeyError for what is missing."""
    return {name: os.environ[name] for name in ENVIRONMENT}


def role_info() -> RankInfo:
    """The ranks that this worker was given."""
    names = ("RANK", "ROLE_RANK", "GROUP_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE")
    return RankInfo(*(int(os.environ[name]) for name in names))


def sleep(long: float, on_rank: int) -> int:
    """Rank ``on_rank`` sleeps ``long`` seconds, the others don't; returns the rank."""
    if rank() == on_rank:
        time.sleep(long)
    return rank()


def dist_sum() -> int:
    """The sum of all ranks by an all_reduce over gloo, checked; returns the world size."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return _sum()


def dist_sum_at(init_method: str) -> int:
    """The same over a store of the script's own."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=init_method, rank=rank(), world_size=int(os.environ["WORLD_SIZE"])
    )
    return _sum()


def gated_sum(folder: str, tag: str = "here") -> int:
    """Make the process group, wait for the gate, then sum."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    arrive(folder, tag)
    wait_for_gate(folder)
    return _sum()


def gated(folder: str, tag: str = "here") -> int:
    """Wait for the gate without any collective: nothing can fail because a peer is gone."""
    arrive(folder, tag)
    wait_for_gate(folder)
    return rank()


def fail_once_and_leave_a_key(folder: str) -> tuple[bool, int]:
    """First round: leave a key in the workers' store, then rank 1 fails. Later: (is that key there, world).

    The process group is made in both: with stale addresses it could not be made again.
    """
    import torch.distributed as dist
    from torch.distributed import TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    dist.init_process_group("gloo")
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=30))
    first = os.environ["ELASTICJOB_ROUND"] == "1"
    if first:
        store.set("left-over", "1")
    left_over = bool(store.check(["left-over"]))
    _sum()
    arrive(folder, f"port-{port}")
    if first and rank() == 1:
        sad()
    if first:
        wait_for_gate(folder)  # it stays closed: the agent stops this worker
    return left_over, int(os.environ["WORLD_SIZE"])


def rpc_asker(text: str) -> str:
    """Call a function on the other worker."""
    from torch.distributed import rpc

    _init_rpc("asker")
    answer = rpc.rpc_sync(to="answerer", func=echo, args=(text,))
    rpc.shutdown()
    return f"{answer} from the other"


def rpc_answerer() -> None:
    """Answer calls until the other is done."""
    from torch.distributed import rpc

    _init_rpc("answerer")
    rpc.shutdown()


def arrive(folder: str, tag: str) -> None:
    """Say that this worker is there, in this round."""
    Path(folder, f"{tag}-{os.environ['ELASTICJOB_ROUND']}-{rank()}").touch()


def wait_for_gate(folder: str) -> None:
    """Wait until the test opens the gate."""
    deadline = time.monotonic() + GATE_SECONDS
    while not Path(folder, "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened the gate in {folder}")
        time.sleep(0.02)


def _init_rpc(name: str) -> None:
    from torch.distributed import rpc

    world = int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(name, rank=rank(), world_size=world)  # type: ignore[no-untyped-call]


def _sum() -> int:
    import torch
    import torch.distributed as dist

    world = int(os.environ["WORLD_SIZE"])
    total = torch.tensor(rank())
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    if total.item() != sum(range(world)):
        raise RuntimeError(f"the sum of {world} ranks is {total.item()}")
    return world
