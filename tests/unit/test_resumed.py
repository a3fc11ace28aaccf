"""Rank 0 says where the state came from in one small file; its agent believes only what is well formed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasticjob.contract import names
from elasticjob.worker.resumed import FILE, Resumed, Source, read_resumed, say_resumed


def test_what_is_said_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.PROGRESS_DIR_ENV, str(tmp_path))
    said = Resumed(18199, Source.PEER, 640, pieces_from_peers=3)

    say_resumed(said)

    assert read_resumed(str(tmp_path)) == said
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert json.loads((tmp_path / FILE).read_text()) == {
        "step": 18199,
        "from": "Peer",
        "milliseconds": 640,
        "pieces_from_peers": 3,
    }


def test_what_is_said_last_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.PROGRESS_DIR_ENV, str(tmp_path))

    say_resumed(Resumed(0, Source.NOTHING, 1))
    say_resumed(Resumed(7, Source.STORAGE, 2))

    assert read_resumed(str(tmp_path)) == Resumed(7, Source.STORAGE, 2)


def test_nothing_is_said_outside_a_job_nor_where_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(names.PROGRESS_DIR_ENV, raising=False)
    say_resumed(Resumed(7, Source.MEMORY, 2))
    monkeypatch.setenv(names.PROGRESS_DIR_ENV, str(tmp_path / "gone"))
    say_resumed(Resumed(7, Source.MEMORY, 2))

    assert read_resumed(str(tmp_path)) is None
    assert read_resumed(str(tmp_path / "gone")) is None


GOOD = {"step": 7, "from": "Memory", "milliseconds": 2, "pieces_from_peers": 0}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 1000,
        json.dumps(GOOD | {"step": -1}),
        json.dumps(GOOD | {"step": 2**53}),
        json.dumps(GOOD | {"step": True}),
        json.dumps(GOOD | {"step": "7"}),
        json.dumps(GOOD | {"milliseconds": 1.5}),
        json.dumps(GOOD | {"from": "Elsewhere"}),
        json.dumps(GOOD | {"from": []}),
        json.dumps({key: GOOD[key] for key in GOOD if key != "from"}),
        json.dumps(GOOD) + " " * 1024,
        "\x00\xff",
    ],
)
def test_what_is_not_well_formed_is_not_believed(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content, encoding="latin-1")

    assert read_resumed(str(tmp_path)) is None
