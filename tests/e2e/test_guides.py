"""The scripts of the guides, as they are in the documents, on processes with torchrun's environment."""

from __future__ import annotations

import multiprocessing
import re
import socket
from pathlib import Path

import pytest

from tests.e2e import checkpoint_ranks
from tests.guides.pages import program

DEADLINE_SECONDS = 600

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.e2e.checkpoint_ranks"])


def launch(path: Path, ranks: int, **environment: str) -> str:
    """Run a program on that many processes; returns what rank 0 has printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    output = path.with_suffix(".out")
    processes = [
        context.Process(
            target=checkpoint_ranks.run_program,
            args=(str(path), rank, ranks, port, environment, str(output) if rank == 0 else "/dev/null"),
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(DEADLINE_SECONDS)
        assert [process.exitcode for process in processes] == [0] * ranks, output.read_text()
    finally:
        for process in processes:
            process.kill()
            process.join()
    return output.read_text()


@pytest.mark.skipif(
    not checkpoint_ranks.HAS_FSDP2, reason="FSDP2 is in torch.distributed.fsdp from torch 2.6 on"
)
def test_the_script_of_the_fsdp_page_trains_on_4_then_3_then_4_ranks(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        program(
            "fsdp.md",
            ("STEPS = 1000", "STEPS = 30"),
            ("range(done + 1, STEPS + 1)", 'range(done + 1, int(os.environ["UNTIL"]) + 1)'),
        )
    )
    (undisturbed,) = re.findall(
        r"step 30 of 30, 1 ranks, loss ([\d.]+)",
        launch(path, 1, UNTIL="30", ELASTICJOB_ROUND="1", CHECKPOINTS=str(tmp_path / "undisturbed")),
    )
    printed = [
        launch(path, ranks, UNTIL=until, ELASTICJOB_ROUND=number, CHECKPOINTS=str(tmp_path / "checkpoints"))
        for number, ranks, until in (("1", 4, "10"), ("2", 3, "20"), ("3", 4, "30"))
    ]
    assert "4 ranks begin after step 0\n" in printed[0]
    assert "3 ranks begin after step 10\n" in printed[1]
    assert "4 ranks begin after step 20\n" in printed[2]
    (resumed,) = re.findall(r"step 30 of 30, 4 ranks, loss ([\d.]+)", printed[2])
    assert float(resumed) == pytest.approx(float(undisturbed), abs=2e-4)


def test_the_script_of_the_data_page_trains_each_sample_once_on_2_then_3_ranks(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    loss = "                loss = torch.nn.functional"
    log = f"open({str(tmp_path / 'samples-')!r} + os.environ['RANK'], 'a')"
    path.write_text(
        program(
            "data.md",
            ("num_workers=2", ""),
            (
                loss,
                f"                print(*map(int, x), file={log})\n{loss}",
            ),
        )
    )
    for number, ranks, until in (("1", 2, "7"), ("2", 3, "20")):
        launch(path, ranks, STEPS=until, ELASTICJOB_ROUND=number, CHECKPOINTS=str(tmp_path / "checkpoints"))
    trained = [sample for file in tmp_path.glob("samples-*") for sample in file.read_text().split()]
    assert sorted(map(int, trained)) == list(range(240))
