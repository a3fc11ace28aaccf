"""A Python environment for each version of torch, made when it is first needed and kept for the next time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
READY = ".ready"
FOR_TESTS = (
    "scikit-learn>=1.5",
    "hypothesis>=6.150",
    "pytest>=9",
    "pytest-asyncio>=1.3",
    "pytest-timeout>=2.4",
    "pytest-xdist>=3.8",
)
"""What the digits example, the handler's unit tests and their conftest import, beside the packages."""


class NoEnvironment(Exception):
    """An environment could not be made."""


@dataclass(frozen=True)
class Environment:
    """``name`` is the version, or "newest" for the environment that runs the tests; ``torchrun`` is how pods
    call it; ``interpreter`` is what uv makes it of."""

    name: str
    requirements: tuple[str, ...] = ()
    torchrun: str = "torchrun"
    interpreter: str = sys.executable

    @property
    def folder(self) -> Path:
        """Where it is: in the repository, ignored by git, removed by ``make clean``."""
        if not self.requirements:
            return Path(sys.executable).parent.parent
        return ROOT / f".venv-{'torch' if self.interpreter == sys.executable else 'python'}{self.name}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def is_made(self) -> bool:
        """Whether it is there, whole."""
        if not self.requirements:
            return True
        ready = self.folder / READY
        return ready.exists() and ready.read_text().split() == self._wanted()

    def make(self) -> None:
        """Make it, unless it is there. Raises NoEnvironment."""
        if self.is_made():
            return
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv is None:
            raise NoEnvironment("uv is not there: make .venv/.ready installs it")
        variables = {
            **os.environ,
            "UV_SYSTEM_CERTS": "1",
            "UV_NATIVE_TLS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        install = [uv, "pip", "install", "--quiet", "--python", str(self.python)]
        install += [f"--editable={ROOT / package}" for package in ("handler", "devcluster")]
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", self.interpreter, str(self.folder)],
            [*install, "elasticjob[kubeconfig]", *self._wanted()],
        ):
            done = subprocess.run(
                command,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NoEnvironment(f"{' '.join(command)}: {done.stdout[-2000:]}")
        (self.folder / READY).write_text("\n".join(self._wanted()))

    def _wanted(self) -> list[str]:
        """What was asked for when it was made."""
        return [*FOR_TESTS, *self.requirements]

    def torch(self) -> str:
        """The version that is in it."""
        code = "import importlib.metadata as m; print(m.version('torch'))"
        answer = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return answer.stdout.strip()


ENVIRONMENTS = {
    one.name: one
    for one in (
        # No entry points for handlers before 2.5; compiled against numpy 1.
        Environment("2.4", ("torch==2.4.*", "numpy<2"), "python -m elasticjob.run"),
        Environment("2.6", ("torch==2.6.*",)),
        Environment("2.8", ("torch==2.8.*",)),
        Environment("newest"),
    )
}

PYTHONS = {
    version: Environment(version, ("torch",), interpreter=f"python{version}")
    for version in ("3.10", "3.11", "3.12", "3.13")
}
"""The versions of Python that the handler is tested on, each with the newest torch there is for it."""
