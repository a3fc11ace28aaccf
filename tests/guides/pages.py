"""The scripts of the guides, as they are in the documents, with a few lines changed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.matrix.environments import ROOT


def program(page: str, *changes: tuple[str, str], number: int = 0) -> str:
    """The page's Python program of this ``number``, with lines changed."""
    text: str = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "use" / page).read_text(), re.DOTALL)[
        number
    ]
    for old, new in changes:
        assert text.count(old) == 1, f"{page} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    return text


def write(folder: Path, page: str, *changes: tuple[str, str], number: int = 0) -> Path:
    """``train.py`` in ``folder``: such a program."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(program(page, *changes, number=number))
    return script
