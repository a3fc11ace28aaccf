"""Writes ``elasticjob_client/_sync`` from ``elasticjob_client/_async``: one client, written once.

    python client/unasync.py

tests/unit/client/test_unasync.py fails where the generated files are not up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "elasticjob_client"
SOURCE, GENERATED = PACKAGE / "_async", PACKAGE / "_sync"
REPLACED = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsync(Iterator|Jobs|Requests|Connection)\b", r"\1"),
    (r"\baclosing\b", "closing"),
    (r"\basyncio(\.sleep)?\b", r"time\1"),
    (r"\basync_lines_of\b", "lines_of"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\bon_asyncio\b", "on_threads"),
    (r"\b_async\b", "_sync"),
)
"""The source has no other word that differs between the two."""


def generated() -> dict[str, str]:
    """The files of the synchronous client, by name."""
    return {path.name: _synchronous(path) for path in sorted(SOURCE.glob("*.py"))}


def _synchronous(path: Path) -> str:
    text = path.read_text()
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    text = f"# Generated from _async/{path.name} by `python client/unasync.py`: do not edit.\n{text}"
    for command in (["check", "--fix-only", "--select", "I", "-"], ["format", "-"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(GENERATED / path.name)]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    GENERATED.mkdir(exist_ok=True)
    for name, text in generated().items():
        (GENERATED / name).write_text(text)
