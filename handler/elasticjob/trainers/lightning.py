"""``ElasticCallback`` for Lightning's Trainer, and which checkpoint to resume from.

    trainer = Trainer(callbacks=[ElasticCallback("/checkpoints"), ModelCheckpoint("/checkpoints", ...)])
    trainer.fit(model, ckpt_path=last_checkpoint("/checkpoints"))

It works with ``lightning`` and with ``pytorch_lightning``: if only the latter is imported, with that one.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

from elasticjob.trainers.agreement import agreed
from elasticjob.worker.progress import report_progress
from elasticjob.worker.script_log import ScriptLog
from elasticjob.worker.stopping import should_stop, stop_here

log = ScriptLog("elasticjob.trainers")

PLANNED = "planned-step={step}.ckpt"
"""The name of a checkpoint that is saved before a planned change."""
STEP = re.compile(r"step=(\d+)")


def _library() -> Any:
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "lightning.pytorch", "pytorch_lightning"):
                raise
    raise ModuleNotFoundError(
        "elasticjob.trainers.lightning needs the package lightning (or pytorch-lightning), which is not "
        "installed: pip install lightning",
        name="lightning",
    )


class ElasticCallback(_library().Callback):  # type: ignore[misc]
    """Reports each optimizer step, and leaves for a planned change when a checkpoint is saved in ``folder``,
    at the same step on all ranks. What was saved so before an earlier change is removed then. Raises
    ValueError if ``folder`` is an address.

    In an ElasticJob it also takes back Lightning's handler of SIGTERM, which calls a collective: when a
    member is lost, workers would wait in it until they are killed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = _local(folder)
        self._step = -1
        self._on_sigterm: Any = signal.SIG_DFL

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning has not yet set its handler."""
        del trainer, pl_module, stage
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning has set its handler."""
        del trainer, pl_module
        if "ELASTICJOB_ROUND" in os.environ and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Ask whether to stop, if this batch was the last of an optimizer step; at the last step, there is
        nothing to stop for."""
        step = trainer.global_step
        if step == self._step:
            return
        self._step = step
        if trainer.should_stop or 0 < trainer.max_steps <= step:
            report_progress(step)
        elif should_stop(step):
            path = self._folder / PLANNED.format(step=step)
            trainer.save_checkpoint(path)  # returns when all ranks have saved, or handed it to a thread:
            trainer.strategy.checkpoint_io.teardown()  # AsyncCheckpointIO waits, and raises what went wrong
            if trainer.is_global_zero:
                _remove_others(path)
            log.info(f"stopped at step {step} for a planned change")
            stop_here()


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint in ``folder``, or None.

    Checkpoints are files ``*.ckpt`` with ``step=N`` in their names, as ModelCheckpoint names them by default.
    A half-written one is passed over, and named in the log. All ranks call it.

    Raises ValueError for an address, or if there are checkpoints without ``step=N`` or sharded ones
    (folders), and no other; OSError if the folder can't be read.
    """
    path = _local(folder)
    return agreed(lambda: _newest(path))


def _local(folder: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(folder):
        raise ValueError(f"the folder is {folder}, expected a path in a file system that all pods share")
    return Path(folder)


def _newest(folder: Path) -> str | None:
    if not folder.exists():
        return None
    found, others = [], []
    for path in folder.glob("*.ckpt"):
        match = STEP.search(path.name)
        if match and path.is_file():
            found.append((int(match[1]), path.stat().st_mtime, path))
        else:
            others.append(path)
    for _, _, path in sorted(found, reverse=True):
        if zipfile.is_zipfile(path):  # its end says what is in it
            log.info(f"resumes from {path}")
            return str(path)
        log.warning(f"passed over {path}: half-written")
    if others:
        raise ValueError(
            f"{others[0]} is a folder or has no step=N in its name, and there is no other complete "
            f"checkpoint in {folder}. last_checkpoint knows files such as epoch=0-step=100.ckpt, "
            "ModelCheckpoint's default; give Trainer.fit the path of another kind yourself."
        )
    return None


def _remove_others(path: Path) -> None:
    for other in path.parent.glob(PLANNED.format(step="*")):
        if other != path:
            other.unlink(missing_ok=True)
