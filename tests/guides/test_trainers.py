"""The callbacks for Trainers of others: real libraries, real torchruns, and an agent that plans a change."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.guides import pages
from tests.guides.environment import GuidesEnvironment
from tests.guides.planned import started

pytestmark = pytest.mark.timeout(1800)
KILLED = "forcefully exiting"
"""torchrun says it of workers that SIGTERM does not end."""


def last(pattern: str, output: str) -> float:
    """The number in the one line that looks like this."""
    found = re.findall(pattern, output)
    assert len(found) == 1, output
    return float(found[0])


def test_hugging_faces_trainer_stops_for_a_change_and_resumes_at_another_world_size(
    guides: GuidesEnvironment, tmp_path: Path
) -> None:
    changes = ("num_train_epochs=10", "num_train_epochs=3"), ("save_steps=100", "save_steps=10000")
    trained = r"trained 300 steps, loss ([\d.]+)"
    script = pages.write(tmp_path / "job", "huggingface.md", *changes)
    with started(guides, script, 1) as first:
        step = first.drain()
        assert first.terminate() != 0
        assert KILLED not in first.output
    assert 0 < step < 300
    assert (tmp_path / "job" / "checkpoints" / f"checkpoint-{step}" / "elasticjob.json").exists()
    (
        tmp_path / "job" / "checkpoints" / "checkpoint-299"
    ).mkdir()  # half-written: Trainer itself would take it
    with started(guides, script, 2, ranks=1) as second:
        output = second.ends_well()
    assert "passed over" in output
    assert "checkpoint-299" in output
    assert f"/checkpoint-{step}\n" in output
    with started(guides, pages.write(tmp_path / "alone", "huggingface.md", *changes), 1, ranks=1) as alone:
        undisturbed = last(trained, alone.ends_well())
    assert last(trained, output) == pytest.approx(undisturbed, abs=2e-3)


def test_lightnings_trainer_stops_for_changes_and_resumes_at_another_world_size(
    guides: GuidesEnvironment, tmp_path: Path
) -> None:
    changes = ("max_epochs=10", "max_epochs=5"), ("every_n_train_steps=100", "every_n_train_steps=10000")
    trained = r"trained 500 steps, weight ([\d.]+)"
    script = pages.write(tmp_path / "job", "lightning.md", *changes)
    folder = tmp_path / "job" / "checkpoints"
    steps = []
    for number in (1, 2):
        with started(guides, script, number) as run:
            steps.append(run.drain())
            assert run.terminate() != 0
            assert KILLED not in run.output
        # That of the change before is gone.
        assert [path.name for path in folder.glob("*.ckpt")] == [f"planned-step={steps[-1]}.ckpt"]
    assert 0 < steps[0] < steps[1] < 500
    (folder / "epoch=4-step=499.ckpt").write_bytes(b"half-written")
    with started(guides, script, 3, ranks=1) as run:
        output = run.ends_well()
    assert "epoch=4-step=499.ckpt: half-written" in output
    assert f"/planned-step={steps[-1]}.ckpt\n" in output
    with started(guides, pages.write(tmp_path / "alone", "lightning.md", *changes), 1, ranks=1) as alone:
        undisturbed = last(trained, alone.ends_well())
    assert last(trained, output) == pytest.approx(undisturbed, abs=2e-4)


LOOKS = """
import sys
from pathlib import Path
from elasticjob.trainers.{module} import last_checkpoint
folder = Path(sys.argv[1])
try:
    print(last_checkpoint(folder))
except Exception as error:
    print(type(error).__name__, error)
"""


def look(guides: GuidesEnvironment, module: str, folder: Path) -> str:
    """What last_checkpoint says."""
    command = [str(guides.python), "-c", LOOKS.format(module=module), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


def test_checkpoints_that_cannot_be_judged_are_refused(guides: GuidesEnvironment, tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
    said = look(guides, "huggingface", tmp_path)
    assert said.startswith("FileNotFoundError none of the 2 checkpoints")
    (tmp_path / "checkpoint-100" / "elasticjob.json").touch()
    assert look(guides, "huggingface", tmp_path) == f"{tmp_path / 'checkpoint-100'}\n"
    assert look(guides, "lightning", tmp_path) == "None\n"
    (tmp_path / "last.ckpt").touch()
    assert look(guides, "lightning", tmp_path).startswith(
        f"ValueError {tmp_path / 'last.ckpt'} is a folder or has no"
    )


def test_ranks_that_trainer_takes_for_lone_ones_are_refused(
    guides: GuidesEnvironment, tmp_path: Path
) -> None:
    """Without use_cpu, accelerate makes no process group on CPUs, and each rank would train the whole."""
    script = pages.write(tmp_path / "job", "huggingface.md", ("not torch.cuda.is_available()", "False"))
    with started(guides, script, 1) as run:
        assert run.process.wait(600) != 0
    assert "torchrun has started 2 ranks, and Trainer knows of 1" in run.output


def test_the_callback_is_of_the_lightning_that_the_script_uses(guides: GuidesEnvironment) -> None:
    code = (
        "import {library}; from elasticjob.trainers.lightning import ElasticCallback; "
        "print(ElasticCallback.__bases__[0].__module__)"
    )
    for library in ("pytorch_lightning", "lightning.pytorch"):
        command = [str(guides.python), "-c", code.format(library=library)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        assert done.stdout.startswith(f"{library}.callbacks")
