"""The Python environment of the guides' scripts: that of the tests has none of the libraries."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.environments import ROOT, Environment

TORCH = "torch==" + importlib.metadata.version("torch").partition("+")[0]
"""That of the tests is in uv's cache: making the environment takes a minute."""


@dataclass(frozen=True)
class GuidesEnvironment(Environment):
    """In the repository, ignored by git, removed by ``make clean``."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        return ROOT / f".venv-{self.name}"

    @property
    def launcher(self) -> str:
        """Its torchrun."""
        return str(self.folder / "bin" / "torchrun")


GUIDES = GuidesEnvironment(
    "guides",
    (TORCH, "accelerate>=1.14", "deepspeed>=0.19", "lightning>=2.6", "torchdata>=0.11", "transformers>=5"),
)
