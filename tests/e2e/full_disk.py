"""What test_full_disk.py runs in a mount namespace of its own: rounds on a disk that has room for keep + 1
checkpoints. Prints what happened, as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

from elasticjob.checkpoint import Checkpoints, NoSpaceError, shards

MEGABYTES = 10
KEEP = 2


def weights(step: int) -> dict[str, Any]:
    return {"weights": torch.full((MEGABYTES * 250_000,), float(step))}


def begin(folder: str, number: int) -> tuple[Checkpoints, int]:
    os.environ.update(ELASTICJOB_ROUND=str(number), TORCHELASTIC_RUN_ID="job")
    checkpoints = Checkpoints(folder, keep=KEEP)
    state = weights(0)
    step = checkpoints.resume(state)
    assert torch.equal(state["weights"], weights(step)["weights"])
    return checkpoints, step


def train(folder: str, number: int, saves: int) -> int:
    """The step that a round resumes from; it saves as many times."""
    checkpoints, step = begin(folder, number)
    with checkpoints:
        for later in range(step + 1, step + 1 + saves):
            checkpoints.save(later, weights(later))
    return step


def killed(folder: str, number: int) -> None:
    """A round whose process is killed when nine tenths of a shard are written."""
    child = os.fork()
    if child == 0:
        original = shards._Summed.write

        def write(self: Any, content: Any) -> int:
            if self.size + len(content) > MEGABYTES * 900_000:
                original(self, bytes(content)[: MEGABYTES * 900_000])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, content)

        shards._Summed.write = write  # type: ignore[method-assign]
        checkpoints, step = begin(folder, number)
        checkpoints.save(step + 1, weights(step + 1))
        checkpoints.wait()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status


def main(folder: str) -> None:
    torch.set_num_threads(1)
    resumed = [train(folder, 1, 3)]
    killed(folder, 2)
    resumed.append(train(folder, 3, 2))

    # Others fill the disk to the last byte, while a round saves; then they leave again.
    checkpoints, step = begin(folder, 4)
    other = os.path.join(os.path.dirname(folder), "other")
    with open(other, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    full = ""
    try:
        checkpoints.save(step + 1, weights(step + 1))
        checkpoints.wait()
    except NoSpaceError as error:
        full = str(error)
    begun = begin(folder, 5)[1]  # its claim needs room, too
    os.unlink(other)
    resumed += [begun, train(folder, 6, 2), train(folder, 7, 0)]
    print(json.dumps({"resumed": resumed, "full": full, "left": sorted(os.listdir(folder))}))


if __name__ == "__main__":
    main(sys.argv[1])
