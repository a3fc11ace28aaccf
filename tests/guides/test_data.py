"""The script of the page on data: each sample of an epoch once, also if the world size changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.guides import pages
from tests.guides.environment import GuidesEnvironment
from tests.guides.planned import started

pytestmark = pytest.mark.timeout(1800)


def test_each_sample_is_trained_once(guides: GuidesEnvironment, tmp_path: Path) -> None:
    loss = "loss = torch.nn.functional"
    script = pages.write(
        tmp_path / "job",
        "data.md",
        ("STEPS = 1000", 'STEPS = int(os.environ["UNTIL"])'),
        (
            loss,
            f'print(f"trains {{step}} {{x.flatten().int().tolist()}}", flush=True)\n                {loss}',
        ),
    )
    outputs = []
    for number, (ranks, until) in enumerate(((2, 7), (2, 13), (3, 25)), start=1):
        with started(guides, script, number, ranks, {"UNTIL": str(until)}) as run:
            outputs.append(run.ends_well())
    # The second run has the loaders of the first; the third has more ranks.
    assert ["of the epoch" in output for output in outputs] == [False, False, True]
    assert "3 ranks begin at step 13 of the epoch" in outputs[2]
    trained: dict[int, list[int]] = {}
    for output in outputs:
        for step, samples in re.findall(r"trains (\d+) \[([\d, ]+)\]", output):
            trained.setdefault(int(step), []).extend(int(sample) for sample in samples.split(","))
    assert sorted(trained) == list(range(25))
    for step, samples in trained.items():
        first = step % 20 * 12
        assert sorted(samples) == list(range(first, first + 12))
