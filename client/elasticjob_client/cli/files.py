"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def is_plain(target: Path) -> bool:
    """Whether it is a file, or will be one: no device, and no other name of what the shell has opened."""
    return target.parent != Path("/dev") and (target.is_file() or not target.exists())


def replace(target: Path, text: str) -> None:
    """Write a file beside what stands there now, which is replaced once it is whole.

    What is no plain file, such as /dev/stdout, is written straight. Raises OSError.
    """
    if not is_plain(target):
        target.write_text(text, encoding="utf-8")
        return
    target = target.resolve()
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(text, encoding="utf-8")
        if target.exists():
            beside.chmod(target.stat().st_mode & 0o777)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
