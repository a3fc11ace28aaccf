"""The guides' scripts as jobs: workers and pods are killed, jobs shrink and grow, and each round begins where
it should.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.e2e.conftest import job
from tests.e2e.job import JobRun
from tests.guides import pages
from tests.guides.environment import GuidesEnvironment
from tests.guides.planned import started

__all__ = ["job"]
pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]

DEADLINE = 600.0
"""Seconds after which a wait has hung: real workers start, beside whatever else the machine does."""
FOLDER = 'os.environ.get("CHECKPOINTS", "checkpoints")'


def can_drain(job: JobRun, number: int) -> bool:
    """Whether this round's leader has said that all workers ask whether to stop."""
    now = job.round()
    if now.get("number", 0) != number or "establishedTime" not in now:
        return False
    lease = json.loads(job.kubectl("get", "lease", now["leaderPodName"], "-o", "json"))
    said = json.loads(lease["metadata"]["annotations"].get("elasticjob.dev/drain", "{}"))
    return bool(said.get("nonce") == job.status()["internal"]["round"]["nonce"])


def said(job: JobRun, pattern: str) -> list[int]:
    """The steps that pods have printed in lines that look like this, in order."""
    texts = [job.log(pod) for pod in job.pods()]
    return sorted(int(step) for text in texts for step in re.findall(pattern, text))


def ends(job: JobRun) -> list[dict[str, Any]]:
    """Why and how each round so far has ended, from the first on."""
    history = reversed(job.status()["roundHistory"])
    return [entry["end"] for entry in history if "end" in entry]


def stopped_at(end: dict[str, Any]) -> int:
    """The common step at which all workers stopped before a change of size ended their round."""
    assert end["drain"] == "Stopped", end
    return int(end["message"].rpartition("all workers stopped at step ")[2])


def held_at(job: JobRun, *steps: int) -> str:
    """A line for a script's loop that holds every rank before each of these steps, until ``go_on``."""
    return (
        f'while step in {steps} and not os.path.exists(f"{job.folder}/go-on-{{step}}"): '
        '__import__("time").sleep(0.1)'
    )


def go_on(job: JobRun, step: int) -> None:
    """Let go the ranks that are held before this step."""
    (job.folder / f"go-on-{step}").touch()


def change_size(job: JobRun, number: int, replicas: int, held: int) -> int:
    """Scale a job whose ranks are held in round ``number``; returns the step at which all have stopped."""
    job.wait_for(lambda: can_drain(job, number), f"round {number} trains")
    job.scale(replicas)
    job.wait_for(lambda: job.round()["phase"] == "Draining", f"round {number} drains")
    go_on(job, held)
    job.wait_for(lambda: len(ends(job)) == number, f"round {number} has ended")
    return stopped_at(ends(job)[-1])


def survives(
    job: JobRun, guides: GuidesEnvironment, script: Path, saved: Callable[[], list[int]], begins: str
) -> None:
    """Kill a worker after the first checkpoint; then take one of two pods away, which must lose no step.

    ``saved`` lists the steps of the complete checkpoints; ``begins`` is what rank 0 prints when it resumes.
    """
    job.deadline = DEADLINE
    job.apply([guides.launcher, str(script)], replicas=2, minReplicas=1)
    job.wait_for(saved, "there is a checkpoint")
    before = max(saved())
    job.kill_worker(job.member(0)["podName"])
    job.wait_for(lambda: can_drain(job, 2), "round 2 trains")
    (resumed,) = said(job, begins)
    assert resumed >= before
    job.patch(replicas=1)
    job.wait_for(lambda: can_drain(job, 3), "round 3 trains")
    assert [end["cause"] for end in ends(job)] == ["WorkerFailed", "ScaledDown"]
    stopped = stopped_at(ends(job)[1])
    assert stopped > resumed
    assert said(job, begins) == [resumed, stopped]


def test_fsdp_on_4_then_3_then_4_pods(job: JobRun, guides: GuidesEnvironment, tmp_path: Path) -> None:
    """Each change of size loses no step and repeats none, and the last loss is that of an undisturbed run."""
    job.deadline = DEADLINE
    short = ("STEPS = 1000", "STEPS = 60")
    trained = job.folder / "trained"
    loop = "            total = torch.zeros("
    script = pages.write(
        job.folder,
        "fsdp.md",
        short,
        (FOLDER, repr(str(job.folder / "checkpoints"))),
        (loop, f"            {held_at(job, 20, 40)}\n{loop}"),
        (
            "            stopping = ",
            f"            if rank == 0: print(step, ranks, file=open({str(trained)!r}, 'a'))\n"
            "            stopping = ",
        ),
    )
    # Beside other work, a worker that is held may have to wait long for its processor.
    job.apply([guides.launcher, str(script)], replicas=4, minReplicas=3, drainSeconds=240)
    first = change_size(job, 1, 3, held=20)
    second = change_size(job, 2, 4, held=40)
    job.complete()
    assert [end["cause"] for end in ends(job)[:2]] == ["ScaledDown", "ScaledUp"]
    assert 0 < first < second < 60
    assert said(job, r"[34] ranks begin after step (\d+)") == [0, first, second]
    assert [tuple(map(int, line.split())) for line in trained.read_text().splitlines()] == [
        (step, 3 if first < step <= second else 4) for step in range(1, 61)
    ]
    loss = r"step 60 of 60, \d ranks, loss ([\d.]+)"
    (disturbed,) = {float(found) for pod in job.pods() for found in re.findall(loss, job.log(pod))}
    with started(guides, pages.write(tmp_path / "alone", "fsdp.md", short), 1, ranks=1) as alone:
        (undisturbed,) = re.findall(loss, alone.ends_well())
    assert disturbed == pytest.approx(float(undisturbed), abs=2e-4)


def test_hugging_faces_trainer(job: JobRun, guides: GuidesEnvironment) -> None:
    folder = job.folder / "checkpoints"
    changes = (FOLDER, repr(str(folder))), ("num_train_epochs=10", "num_train_epochs=10000")
    script = pages.write(job.folder, "huggingface.md", *changes)

    def saved() -> list[int]:
        return [int(path.parent.name.split("-")[1]) for path in folder.glob("checkpoint-*/elasticjob.json")]

    survives(job, guides, script, saved, r"begins from \S+checkpoint-(\d+)\n")


def test_accelerate(job: JobRun, guides: GuidesEnvironment) -> None:
    folder = job.folder / "checkpoints"
    changes = (FOLDER, repr(str(folder))), ("STEPS = 1000", "STEPS = 1000000")
    script = pages.write(job.folder, "huggingface.md", *changes, number=1)

    def saved() -> list[int]:
        return [int(path.parent.name.split("-s")[1]) for path in folder.glob("checkpoint-*/complete.json")]

    survives(job, guides, script, saved, r"ranks begin after step ([1-9]\d*)\n")


def test_lightning(job: JobRun, guides: GuidesEnvironment) -> None:
    folder = job.folder / "checkpoints"
    changes = (FOLDER, repr(str(folder))), ("max_epochs=10", "max_epochs=10000")
    script = pages.write(job.folder, "lightning.md", *changes)

    def saved() -> list[int]:
        return [int(step) for path in folder.glob("*.ckpt") for step in re.findall(r"step=(\d+)", path.name)]

    survives(job, guides, script, saved, r"begins from \S+step=(\d+)\S*\.ckpt\n")


def test_ddp(job: JobRun, guides: GuidesEnvironment, tmp_path: Path) -> None:
    """A pod is killed: two ranks resume from the checkpoint, and end with the model of an undisturbed run."""
    job.deadline = DEADLINE
    loop = "            x = torch.randn("
    model = "    model = DistributedDataParallel("
    changes = (
        ("STEPS = 1000", "STEPS = 200"),
        ("lr=0.1", "lr=0.001"),
        (model, f"    torch.manual_seed(0)\n{model}"),
    )
    folders = job.folder / "checkpoints", tmp_path / "alone" / "checkpoints"
    script = pages.write(
        job.folder,
        "writing.md",
        *changes,
        (FOLDER, repr(str(folders[0]))),
        (loop, f"            {held_at(job, 150)}\n{loop}"),
    )
    alone = pages.write(tmp_path / "alone", "writing.md", *changes)

    job.apply([guides.launcher, str(script)], replicas=2)
    job.wait_for(lambda: [*folders[0].glob("*-s00000100/complete.json")], "there is a checkpoint")
    job.kill_pod(job.member(0)["podName"])
    job.wait_for(lambda: job.round()["number"] == 2 and "establishedTime" in job.round(), "round 2 trains")
    go_on(job, 150)
    job.complete()
    printed = "".join(job.log(pod) for pod in job.pods())
    began = re.findall(r"rank (\d) of 2 begins after step (\d+)\n", printed)
    assert sorted(one for one in began if one[1] != "0") == [("0", "100"), ("1", "100")]
    assert "elasticjob.checkpoint: resumed from " in printed
    with started(guides, alone, 1) as run:
        run.ends_well()
    last, undisturbed = (
        whole(next(folder.glob("*-s00000200")), tmp_path / f"{number}.pt")
        for number, folder in enumerate(folders)
    )
    torch.testing.assert_close(last, undisturbed)


def whole(checkpoint: Path, file: Path) -> Any:
    """The model of a sharded checkpoint."""
    dcp_to_torch_save(checkpoint, file)
    return torch.load(file)["train"]["model"]


def test_data(job: JobRun, guides: GuidesEnvironment) -> None:
    """Two ranks become three in the middle of an epoch, and each sample is trained once."""
    job.deadline = DEADLINE
    loss = "                loss = torch.nn.functional"
    log = f"open({str(job.folder / 'samples-')!r} + os.environ['RANK'], 'a')"
    script = pages.write(
        job.folder,
        "data.md",
        ("STEPS = 1000", "STEPS = 25"),
        (FOLDER, repr(str(job.folder / "checkpoints"))),
        (
            loss,
            f"                {held_at(job, 12)}\n"
            f"                print(step, *map(int, x), file={log})\n{loss}",
        ),
    )
    job.apply([guides.launcher, str(script)], replicas=2, drainSeconds=240)
    stopped = change_size(job, 1, 3, held=12)
    job.complete()
    assert said(job, r"step (\d+), saved by 2 ranks, loaded by 3") == [stopped]
    trained: dict[int, list[int]] = {}
    for file in job.folder.glob("samples-*"):
        for step, *samples in (map(int, line.split()) for line in file.read_text().splitlines()):
            trained.setdefault(step, []).extend(samples)
    assert sorted(trained) == list(range(1, 26))
    assert {len(samples) for samples in trained.values()} == {12}
    assert sorted(sample for step in range(1, 21) for sample in trained[step]) == list(range(240))


@pytest.mark.timeout(3600)
def test_deepspeed(job: JobRun, guides: GuidesEnvironment, tmp_path: Path) -> None:
    """A worker is killed, then two ranks become one: the last loss is that of an undisturbed run."""
    job.deadline = DEADLINE
    short = ("STEPS = 1000", "STEPS = 60")
    loss = r"step 60 of 60, \d ranks, loss ([\d.]+)"
    # DeepSpeed compiles a module, with its own ninja. Here it has time for that.
    compiled = {
        "TORCH_EXTENSIONS_DIR": str(guides.folder / "torch-extensions"),
        "PATH": f"{guides.folder}/bin:{os.environ['PATH']}",
    }
    load = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()"
    subprocess.run([str(guides.python), "-c", load], env={**os.environ, **compiled}, check=True, timeout=1500)
    alone = pages.write(tmp_path / "alone", "deepspeed.md", short)
    with started(guides, alone, 1, ranks=1, environment=compiled) as run:
        (undisturbed,) = re.findall(loss, run.ends_well())

    folder = job.folder / "checkpoints"
    loop = "        x, y = ("
    script = pages.write(
        job.folder,
        "deepspeed.md",
        short,
        (FOLDER, repr(str(folder))),
        (loop, f"        {held_at(job, 25)}\n{loop}"),
    )
    variables = [f"{name}={value}" for name, value in compiled.items()]
    job.apply(["env", *variables, guides.launcher, str(script)], replicas=2, minReplicas=1, drainSeconds=240)
    job.wait_for(lambda: [*folder.glob("checkpoint-00000020-*/complete.json")], "there is a checkpoint")
    job.kill_worker(job.member(0)["podName"])
    stopped = change_size(job, 2, 1, held=25)
    job.complete()
    assert [end["cause"] for end in ends(job)[:2]] == ["WorkerFailed", "ScaledDown"]
    printed = "".join(job.log(pod) for pod in job.pods())
    began = re.findall(r"(\d) ranks begin after step (\d+)\n", printed)
    assert began == [("2", "0"), ("2", "20"), ("1", str(stopped))]
    assert re.findall(loss, printed) == [undisturbed]
    assert len([*folder.glob("checkpoint-*")]) == 2
    assert not [*folder.glob("universal-*")]
