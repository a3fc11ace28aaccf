"""The script of the page on data, and the loader of torchdata beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.guides import pages
from tests.guides.environment import GuidesEnvironment
from tests.guides.planned import started

pytestmark = pytest.mark.timeout(1800)


def test_each_sample_is_trained_once(guides: GuidesEnvironment, tmp_path: Path) -> None:
    """Two ranks resume, then three, in the middle of an epoch; the loader's workers load ahead."""
    loss = "loss = torch.nn.functional"
    script = pages.write(
        tmp_path / "job",
        "data.md",
        (
            loss,
            f'print(f"trains {{step}} {{x.flatten().int().tolist()}}", flush=True)\n                {loss}',
        ),
    )
    outputs = []
    for number, (ranks, until) in enumerate(((2, 7), (2, 13), (3, 25)), start=1):
        with started(guides, script, number, ranks, {"STEPS": str(until)}) as run:
            outputs.append(run.ends_well())
    assert "step 13, saved by 2 ranks, loaded by 3" in outputs[2]
    trained: dict[int, list[int]] = {}
    for output in outputs:
        for step, samples in re.findall(r"trains (\d+) \[([\d, ]+)\]", output):
            trained.setdefault(int(step), []).extend(int(sample) for sample in samples.split(","))
    assert sorted(trained) == list(range(1, 26))
    assert {len(samples) for samples in trained.values()} == {12}
    assert sorted(sample for step in range(1, 21) for sample in trained[step]) == list(range(240))


STREAM = """
import os

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

from elasticjob.checkpoint import Checkpoints
from elasticjob.data import per_rank


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rank):
        self.rank, self.read = rank, 0

    def __iter__(self):
        while self.read < 100:
            self.read += 1
            yield self.rank * 10000 + torch.utils.data.get_worker_info().id * 1000 + self.read

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


dist.init_process_group("gloo")
rank = dist.get_rank()
loader = per_rank(StatefulDataLoader(Stream(rank), batch_size=2, num_workers=2))
state = {"data": loader}
with Checkpoints(os.environ["CHECKPOINTS"]) as checkpoints:
    done = checkpoints.resume(state)
    for step, batch in zip(range(done + 1, int(os.environ["UNTIL"]) + 1), loader):
        print(f"rank {rank} step {step} has {batch.tolist()}", flush=True)
        if step % 5 == 0:
            checkpoints.save(step, state)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_loader_of_torchdata_goes_on_where_each_rank_was(guides: GuidesEnvironment, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(STREAM)
    printed = ""
    for number, until in ((1, 7), (2, 12)):  # the last two of the first are lost
        with started(guides, script, number, 2, {"UNTIL": str(until)}) as run:
            printed += run.ends_well()
    has = {
        (int(rank), int(step)): batch
        for rank, step, batch in re.findall(r"rank (\d) step (\d+) has \[([\d, ]+)\]", printed)
    }
    expected = {
        (rank, step): f"{first + 1}, {first + 2}"
        for rank in range(2)
        for step in range(1, 13)
        for first in [rank * 10000 + (step - 1) % 2 * 1000 + (step - 1) // 2 * 2]
    }
    assert has == expected
    with started(guides, script, 3, 3, {"UNTIL": "15"}) as run:
        assert run.process.wait(600) != 0
        assert "the states of the loaders were saved by 2 ranks, and now there are 3: " in run.output
