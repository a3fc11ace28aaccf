"""Environments that stand for stock PyTorch images: torch, an urllib3 of another age, and nothing of ours."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.environments import READY, ROOT, NoEnvironment

OLD_URLLIB3 = "1.26.20"
"""What a training image may need, for boto and others: the handler could not do with it."""


@dataclass(frozen=True)
class Stock:
    """``version`` of Python, with the newest torch that there is for it. Kept for the next time, in the
    repository, ignored by git, removed by ``make clean``."""

    version: str

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return ROOT / f".venv-stock{self.version}" / "bin"

    def make(self) -> None:
        """Make it, unless it is there. Raises NoEnvironment."""
        if (self.bin.parent / READY).exists():
            return
        uv = str(Path(sys.executable).with_name("uv"))
        for command in (
            ["venv", "--clear", "--python", _interpreter(self.version), str(self.bin.parent)],
            ["pip", "install", "--python", str(self.bin / "python"), *self._packages()],
        ):
            variables = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
            done = subprocess.run(
                [uv, *command, "--quiet"],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NoEnvironment(f"{command}: {done.stderr[-2000:]}")
        (self.bin.parent / READY).touch()

    def _packages(self) -> list[str]:
        torch = "torch"
        if self.version == THIS.version:
            # The one of these tests is in uv's cache: this takes seconds.
            torch += "==" + importlib.metadata.version("torch").partition("+")[0]
        return [torch, "numpy", f"urllib3=={OLD_URLLIB3}"]


THIS = Stock("{}.{}".format(*sys.version_info))


def _interpreter(version: str) -> str:
    """A Python of that version: on PATH, or pyenv's. Raises NoEnvironment."""
    if version == THIS.version:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for found in (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")):
        # A shim of pyenv's is there for versions that are not switched on, and then only says so.
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    raise NoEnvironment(f"there is no Python {version} here")
