"""Command-line tools, built from their Go modules into the cache when they are first needed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.build import REPRODUCIBLE_AND_SMALL, find_go, go_environment, locked, run_with_progress, say
from devcluster.paths import cache_dir

_DOWNLOAD_SECONDS = 600.0


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
        folder = "-".join(filter(None, (self.name, self.version, self.variant)))
        return _ensure(folder, (self.name,), self._build, "a minute or two") / self.name

    def _build(self, output: Path, began: float) -> None:
        program = f"{self.package}@{self.version}"
        command = [find_go(), "install", *REPRODUCIBLE_AND_SMALL, "-ldflags", _linked(self.stamps), program]
        run_with_progress(command, {**go_environment(), "GOBIN": str(output)}, began, output.parent)


@dataclass(frozen=True)
class GoModule:
    """Several programs of a module, built in the module's own folder, as its releases are: `go install` takes
    no module that replaces or excludes others. ``programs`` are folders in it; ``minutes`` says how long it
    takes on 2 cores."""

    name: str
    module: str
    version: str
    programs: tuple[str, ...]
    tags: tuple[str, ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)
    minutes: str = "a minute or two"

    def ensure(self) -> Path:
        """The folder with the binaries; builds them if they aren't cached. Raises RuntimeError if the build
        fails."""
        names = tuple(Path(program).name for program in self.programs)
        return _ensure(f"{self.name}-{self.version}", names, self._build, self.minutes)

    def _build(self, output: Path, began: float) -> None:
        source = module_source(self.module, self.version)
        arguments = ["-mod=readonly", "-buildvcs=false", *REPRODUCIBLE_AND_SMALL]
        arguments += ["-tags", ",".join(self.tags), "-ldflags", _linked(self.stamps), "-o", f"{output}/"]
        command = [find_go(), "build", "-v", *arguments, *(f"./{program}" for program in self.programs)]
        run_with_progress(command, _without_workspace(), began, source)


def module_source(module: str, version: str) -> Path:
    """The folder with a module's files, in Go's own cache. Raises RuntimeError if it can't be downloaded."""
    asked = [find_go(), "mod", "download", "-json", f"{module}@{version}"]
    with tempfile.TemporaryDirectory() as elsewhere:  # not in a module, which would have a say
        answer = subprocess.run(
            asked,
            cwd=elsewhere,
            env=_without_workspace(),
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    if answer.returncode != 0:
        raise RuntimeError(f"cannot download {asked[-1]}:\n{answer.stdout}{answer.stderr}")
    return Path(json.loads(answer.stdout)["Dir"])


def _without_workspace() -> dict[str, str]:
    """The module may be one of a workspace whose other modules are not published."""
    return {**go_environment(), "GOWORK": "off"}


def _ensure(folder: str, names: tuple[str, ...], build: Callable[[Path, float], None], minutes: str) -> Path:
    """The folder of the cache with these binaries. ``build`` makes them in a folder, which exists."""
    target = cache_dir() / folder

    def complete() -> bool:
        return all((target / name).exists() for name in names)

    if complete():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f"{target.name}.lock"), folder):
        if not complete():
            say(f"building {folder} ({minutes} on 2 cores, then cached)")
            began = time.monotonic()
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{folder}-") as scratch:
                output = Path(scratch, "out")
                output.mkdir()
                build(output, began)
                output.rename(target)
            say(f"built in {time.monotonic() - began:.0f} s: {target}")
    return target


def _linked(stamps: Mapping[str, str]) -> str:
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in stamps.items())])
