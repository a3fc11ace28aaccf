"""Says where the state of this round came from, once rank 0's script has resumed.

Rank 0 writes one small file into ``$ELASTICJOB_PROGRESS_DIR``, a new folder for each round; its agent reads
it. The file is put there in one step, so a reader finds all of it or no file.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import NamedTuple

from elasticjob.contract.state_source import Source
from elasticjob.worker.progress import MAX_STEP, PROGRESS_DIR_ENV

__all__ = ["FILE", "Resumed", "Source", "read_resumed", "say_resumed"]
FILE = "resumed.json"
MOST_BYTES = 1024
"""A larger file is not ours."""


class Resumed(NamedTuple):
    """What the state of a round is, and where it came from."""

    step: int
    source: Source
    milliseconds: int
    """From the beginning of ``resume`` to the loaded state, on rank 0."""
    pieces_from_peers: int = 0
    """How many pieces ranks have got from the memory of other pods."""


def say_resumed(resumed: Resumed) -> None:
    """Write the file. Does nothing outside an ElasticJob. Never raises OSError: training does not depend on
    what is said of it."""
    folder = os.environ.get(PROGRESS_DIR_ENV, "")
    if not folder:
        return
    fields = {
        "step": resumed.step,
        "from": str(resumed.source),
        "milliseconds": resumed.milliseconds,
        "pieces_from_peers": resumed.pieces_from_peers,
    }
    unfinished = os.path.join(folder, f"{FILE}.{os.getpid()}")
    with contextlib.suppress(OSError):
        with open(unfinished, "w") as file:
            json.dump(fields, file)
        os.replace(unfinished, os.path.join(folder, FILE))


def read_resumed(directory: str) -> Resumed | None:
    """What rank 0 has said in the folder of a round; None if there is nothing, or nothing that can be read.
    The file is a worker's, so any content is possible. Never raises."""
    try:
        with open(os.path.join(directory, FILE), "rb") as file:
            text = file.read(MOST_BYTES + 1)
        fields = json.loads(text) if len(text) <= MOST_BYTES else None
        if not isinstance(fields, dict):
            return None
        numbers = [fields[name] for name in ("step", "milliseconds", "pieces_from_peers")]
        if not all(type(number) is int and 0 <= number < MAX_STEP for number in numbers):
            return None
        step, milliseconds, pieces = numbers
        return Resumed(step, Source(fields["from"]), milliseconds, pieces)
    except (OSError, ValueError, KeyError, RecursionError):
        return None
