"""`python -m benchmarks.save_cost`: how long a save of a checkpoint stops training, and the memory it takes.

Real gloo workers hold the same replicated state, as with DDP. Each way to save runs in processes of its own,
in turns. A save is timed until training may go on; what a thread writes after that is awaited, but not
counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from benchmarks import markdown
from benchmarks.environment import environment
from elasticjob.checkpoint import Checkpoints

RESULTS = Path(__file__).parent / "results"
TENSORS = 60
OURS, COPIED, ONE_FILE = "Checkpoints.save", "a copy, then dcp.async_save", "torch.save on rank 0"
Save = Callable[[int, dict[str, Any]], None]
Wait = Callable[[], None]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.save_cost", description=__doc__)
    parser.add_argument("--mib", type=int, default=480, help="size of the state, default %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="default %(default)s")
    parser.add_argument("--saves", type=int, default=8, help="of each run, default %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="of each way, default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="default %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {**environment(None), "state": f"{options.mib} MiB", "ranks": options.ranks}
    runs: dict[str, list[dict[str, Any]]] = {OURS: [], COPIED: [], ONE_FILE: []}
    for _ in range(options.runs):
        for way, found in runs.items():
            found.append(_run(way, options))
            print(way, found[-1], flush=True)
    (options.out / "save.json").write_text(json.dumps({"runs": runs, "environment": facts}, indent=1) + "\n")
    (options.out / "save.md").write_text(table(runs, facts))
    print(f"\n{table(runs, facts)}\nwritten to {options.out}")


def table(runs: Mapping[str, Sequence[Mapping[str, Any]]], facts: Mapping[str, object]) -> str:
    """Medians and spread of each way."""
    rows = []
    for way, found in runs.items():
        first = [run["stops"][0] for run in found]
        later = [stop for run in found for stop in run["stops"][1:]]
        memory = [run["memory"] for run in found]
        rows.append(
            [
                way,
                f"{statistics.median(first):.3f}",
                f"{statistics.median(later):.3f} ({min(later):.3f} to {max(later):.3f})",
                f"{statistics.median(memory):.0f}",
            ]
        )
    return markdown.document(
        "What a save costs training",
        "Seconds that a save of replicated state stops training, on the rank that it stops longest: the "
        "first save of a process, and the others, median (minimum to maximum). *memory*: MiB by which the "
        "highest use of a rank exceeds its use before the first save.",
        markdown.facts(facts),
        markdown.table(["way", "first save", "each later save", "memory"], rows),
    )


def _run(way: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        given = [way, folder, str(options.ranks), str(options.mib), str(options.saves)]
        code = "import sys; from benchmarks.save_cost import rank; rank(*sys.argv[1:])"
        ranks = [
            subprocess.Popen([sys.executable, "-c", code, str(one), *given], stdout=subprocess.PIPE)
            for one in range(options.ranks)
        ]
        outputs = [one.communicate()[0] for one in ranks]
    if any(one.returncode for one in ranks):
        raise RuntimeError(f"{way}: a rank has failed")
    found = [json.loads(output) for output in outputs]
    return {
        "stops": [max(stops) for stops in zip(*(one["stops"] for one in found), strict=True)],
        "memory": max(one["memory"] for one in found),
    }


def rank(number: str, way: str, folder: str, ranks: str, mib: str, saves: str) -> None:
    """One rank: save, and print how long each save took and the memory in MiB."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks", rank=int(number), world_size=int(ranks)
    )
    elements = int(mib) * 2**20 // 4 // TENSORS
    state: dict[str, Any] = {f"tensor{n}": torch.full((elements,), float(n)) for n in range(TENSORS)}
    save, wait = _ways(f"{folder}/checkpoints")[way]()
    before = _highest_mib()
    stops = []
    for step in range(1, int(saves) + 1):
        dist.barrier()
        began = time.monotonic()
        save(step, state)
        stops.append(time.monotonic() - began)
        wait()
        state["tensor0"] += 1.0
    print(json.dumps({"stops": stops, "memory": _highest_mib() - before}))
    dist.barrier()
    dist.destroy_process_group()


def _ways(folder: str) -> dict[str, Callable[[], tuple[Save, Wait]]]:
    def ours() -> tuple[Save, Wait]:
        checkpoints = Checkpoints(folder)
        return checkpoints.save, checkpoints.wait

    def copied() -> tuple[Save, Wait]:
        group: Any = dist.new_group(backend="gloo")
        begun: list[Any] = []

        def save(step: int, state: dict[str, Any]) -> None:
            copy = {key: value.clone() for key, value in state.items()}
            begun.append(dcp.async_save(copy, checkpoint_id=f"{folder}/{step % 2}", process_group=group))

        return save, lambda: begun.pop().result()

    def one_file() -> tuple[Save, Wait]:
        def save(_step: int, state: dict[str, Any]) -> None:
            if dist.get_rank() == 0:
                torch.save(state, folder)
            dist.barrier()

        return save, lambda: None

    return {OURS: ours, COPIED: copied, ONE_FILE: one_file}


def _highest_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
