"""``ElasticCallback`` for Trainer of Hugging Face's ``transformers``, and which checkpoint to resume from.

    arguments = TrainingArguments("/checkpoints", save_steps=100, save_total_limit=3)
    trainer = Trainer(model, arguments, callbacks=[ElasticCallback()], ...)
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))

Trainer writes a checkpoint's files one after the other into the folder that they stay in, and takes the
folder with the highest number as the last checkpoint, half-written or not. A job whose pods die in the middle
of a save would then fail at every start. So the callback puts a file beside them when all ranks have written
theirs, and ``last_checkpoint`` takes no folder without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist

from elasticjob.trainers.agreement import agreed
from elasticjob.worker.progress import report_progress
from elasticjob.worker.script_log import ScriptLog
from elasticjob.worker.stopping import should_stop, stop_here

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "elasticjob.trainers.huggingface needs the package transformers, which is not installed: "
        "pip install 'transformers[torch]'",
        name="transformers",
    ) from None

log = ScriptLog("elasticjob.trainers")

MARKER = "elasticjob.json"
"""The file that says that a checkpoint is complete."""
FOLDER = re.compile(r"checkpoint-(\d+)")
TRAINER_STATE = "trainer_state.json"
"""The file that Trainer writes last."""
UNFINISHED = "unfinished-"
LEAST_LIMIT = 3
"""Trainer removes what is beyond ``save_total_limit`` before the new checkpoint is marked: with 1 that is the
only complete one, and with 2 it is beside one that is half-written."""


class ElasticCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each step, and leaves for a planned change when a checkpoint is saved, at the same step on all
    ranks. Give it to Trainer as the last of ``callbacks``: those behind it miss the save before a change.

    Trainer calls it after each optimizer step; ``save_strategy`` may be anything. Outside an ElasticJob it
    only marks checkpoints as complete.
    """

    def __init__(self) -> None:
        self._stopping_at = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Raises RuntimeError if torchrun has started several ranks, and each would train alone, and
        ValueError for a ``save_total_limit`` by which Trainer would remove the only complete checkpoint."""
        del control
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if args.world_size != ranks:
            raise RuntimeError(
                f"torchrun has started {ranks} ranks, and Trainer knows of {args.world_size}: each rank "
                "would train alone. On CPUs, Trainer needs TrainingArguments(..., use_cpu=True)."
            )
        limit = args.save_total_limit
        if limit is None or limit <= 0:
            return
        if limit < LEAST_LIMIT:
            raise ValueError(
                f"save_total_limit is {limit}, expected {LEAST_LIMIT} or more, or None: Trainer removes the "
                "oldest checkpoint before the new one is known to be complete. If a pod died then, none "
                "would be left to resume from."
            )
        if state.is_world_process_zero:
            _make_way(Path(args.output_dir), state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask whether to stop; at the last step there is nothing to stop for."""
        del args
        if control.should_training_stop or 0 < state.max_steps <= state.global_step:
            report_progress(state.global_step)
        elif should_stop(state.global_step):
            self._stopping_at = state.global_step
            control.should_save = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """This rank has written its files."""
        del control
        if dist.is_initialized():
            dist.barrier()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            _mark(folder, state.global_step)
            for passed_over in folder.parent.glob(f"{UNFINISHED}*"):
                shutil.rmtree(passed_over, ignore_errors=True)
        if self._stopping_at == state.global_step:
            log.info(f"stopped at step {state.global_step} for a planned change")
            stop_here()


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint in Trainer's ``output_dir``, or None. Complete are those that
    ``ElasticCallback`` has marked; newer ones that are passed over are named in the log.

    All ranks call it. Raises FileNotFoundError if none is marked and there are several, or one that has the
    file which Trainer writes last: training would start from scratch, and remove them. Raises OSError if the
    folder can't be read.
    """
    return agreed(lambda: _newest(Path(folder)))


def _newest(folder: Path) -> str | None:
    if not folder.exists():
        return None
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := FOLDER.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        if (path / MARKER).exists():
            log.info(f"resumes from {path}")
            return str(path)
        log.warning(f"passed over {path}: half-written, or saved without ElasticCallback: it has no {MARKER}")
    remedy = (
        f"the file {MARKER}, by which ElasticCallback marks the complete ones. Make an empty file of that "
        "name in the one to resume from, or use another folder to start from scratch."
    )
    if len(found) > 1:
        raise FileNotFoundError(f"none of the {len(found)} checkpoints in {folder} has {remedy}")
    if found and (found[0][1] / TRAINER_STATE).exists():
        raise FileNotFoundError(f"{found[0][1]} has {TRAINER_STATE}, so it may be complete, but not {remedy}")
    return None


def _make_way(folder: Path, step: int) -> None:
    """Training resumes from a complete checkpoint: rename those that it has passed over. Otherwise Trainer
    counts them, and removes the ones with the lowest numbers."""
    if not (folder / f"checkpoint-{step}" / MARKER).exists():
        return
    for path in list(folder.iterdir()):
        match = FOLDER.fullmatch(path.name)
        if match and int(match[1]) > step and not (path / MARKER).exists():
            away = folder / f"{UNFINISHED}{match[1]}"
            log.warning(f"moves {path}, which is half-written, to {away.name} until the next save")
            shutil.rmtree(away, ignore_errors=True)
            path.rename(away)


def _mark(folder: Path, step: int) -> None:
    said = {"step": step, "ranks": dist.get_world_size() if dist.is_initialized() else 1}
    said["round"] = int(os.environ.get("ELASTICJOB_ROUND", "0"))
    unfinished = folder / f"{MARKER}.unfinished"
    unfinished.write_text(json.dumps(said) + "\n")
    unfinished.replace(folder / MARKER)
