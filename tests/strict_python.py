"""A Python that verifies certificates strictly by default, as 3.13 and later do: the images' own is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ASK = "import ssl, sys; print(sys.version_info[1] * bool(ssl.create_default_context().verify_flags & 0x20))"
# What 3.13 does, for a Python that does not yet.
_PLAYED = """\
import ssl

_make = ssl.create_default_context


def create_default_context(*args, **kwargs):
    context = _make(*args, **kwargs)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


ssl.create_default_context = create_default_context
"""


def find() -> str | None:
    """The newest one of this machine that has come out of its tests, None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    names = [name for minor in (15, 14, 13) if (name := shutil.which(f"python3.{minor}"))]
    names += [str(path) for path in sorted(pyenv.glob("versions/3.1[3-9]*/bin/python"))]
    strict = {name: _strictness(name) for name in [sys.executable, *names]}
    best = max(strict, key=lambda name: strict[name])
    return best if strict[best] else None


def play(environment: Path) -> None:
    """Let a virtual environment's Python be strict, whichever it is."""
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "sitecustomize.py").write_text(_PLAYED)


def _strictness(python: str) -> int:
    """Its minor version if it is strict, else 0; 0 too for a shim that leads nowhere."""
    try:
        answer = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    return int(answer.stdout) if answer.returncode == 0 else 0
