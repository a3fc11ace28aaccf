"""The callbacks for Trainers of others, without their libraries; tests/guides/test_trainers.py has these."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent", "remedy"),
    [
        ("huggingface", ["transformers"], r"pip install 'transformers\[torch\]'"),
        ("lightning", ["lightning", "pytorch_lightning"], "pip install lightning"),
    ],
)
def test_an_absent_library_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, absent: list[str], remedy: str
) -> None:
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"elasticjob.trainers.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=remedy) as raised:
        importlib.import_module(f"elasticjob.trainers.{module}")
    assert raised.value.name == absent[0]
