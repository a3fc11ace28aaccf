"""Command-line tools, built from their Go modules into the cache when they are first needed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.build import REPRODUCIBLE_AND_SMALL, find_go, go_environment, locked, run_with_progress, say
from devcluster.paths import cache_dir


@dataclass(frozen=True)
class GoTool:
    """A program of a Go module: ``package`` is what `go install` takes. ``stamps`` are values of variables of
    its packages, and ``variant`` names them in the cache."""

    name: str
    package: str
    version: str
    variant: str = ""
    stamps: Mapping[str, str] = field(default_factory=dict)

    def ensure(self) -> Path:
        """The binary; builds it if it isn't cached. Raises RuntimeError if the build fails."""
        target = cache_dir() / "-".join(filter(None, (self.name, self.version, self.variant)))
        binary = target / self.name
        if not binary.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target.with_name(f"{target.name}.lock"), self.name):
                if not binary.exists():
                    self._build(target)
        return binary

    def _build(self, target: Path) -> None:
        say(f"building {self.name} {self.version} (a minute or two on 2 cores, then cached)")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{self.name}-") as scratch:
            output = Path(scratch, "out")
            stamped = " ".join(f"-X {name}={value}" for name, value in self.stamps.items())
            program = f"{self.package}@{self.version}"
            command = [find_go(), "install", *REPRODUCIBLE_AND_SMALL, "-ldflags", f"-s -w {stamped}", program]
            run_with_progress(command, {**go_environment(), "GOBIN": str(output)}, began, Path(scratch))
            output.rename(target)
        say(f"built in {time.monotonic() - began:.0f} s: {target / self.name}")
