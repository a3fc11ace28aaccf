"""What the agent says of workers that do not take part in planned changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from devcluster.wait import wait_for
from elasticjob.drain import board as board_module
from elasticjob.drain.board import StopBoard
from elasticjob.worker.stopping import GOES_ON, STOP_SUFFIX, map_word


# shows: some ranks call `should_stop`, and others do not
def test_fewer_than_all_that_call_should_stop_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(board_module, "FEW_SECONDS", 0.1)
    board = StopBoard(str(tmp_path), 2)
    map_word(str(tmp_path / f"0{STOP_SUFFIX}"), os.O_RDWR | os.O_CREAT)[0] = 7 << 2 | GOES_ON
    wait_for(lambda: board.take_part() or caplog.messages, 30, "it is said")
    assert not any(board.take_part() for _ in range(3))
    assert caplog.messages == [
        "1 of 2 local workers call should_stop, so no planned change waits for a checkpoint: "
        "call it on every rank"
    ]
    map_word(str(tmp_path / f"1{STOP_SUFFIX}"), os.O_RDWR | os.O_CREAT)[0] = 7 << 2 | GOES_ON
    assert board.take_part()
