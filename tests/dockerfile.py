"""The steps of a Dockerfile, run in a folder: what stands for an image where none can be built, and what
`charts.images` puts on a base image.

The base image and its user are not there: `python` is the one that is named, else the one that runs this,
with pip and nothing else. Needs the package index, as a build does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

HOME = "/opt/elasticjob"
"""The one folder that our Dockerfiles write to."""
ROOT = Path(__file__).resolve().parent.parent

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_CACHE = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")


class BuildError(Exception):
    """A step has failed; the text is what it said."""


class Build:
    """The stages of a Dockerfile, each a folder. Only instructions that ours use; others are an error.

    ``arguments`` are what `--build-arg` gives, and ``pip`` are settings of pip. The context is that of a
    checkout that only its owner can read.
    """

    def __init__(
        self,
        dockerfile: Path,
        folder: Path,
        python: str = sys.executable,
        pip: Mapping[str, str] | None = None,
        **arguments: str,
    ) -> None:
        self.env: dict[str, str] = {}
        self.entrypoint: list[str] = []
        self.user = ""
        self.labels: dict[str, str] = {}
        self._stages: dict[str, Path] = {}
        self._folder = folder
        self._pip = pip or {}
        self._given = arguments
        self._defaults: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        # A Python with pip and nothing else, as `python` is in the base image.
        self.python = folder / "python"
        """Its virtual environment."""
        subprocess.run([python, "-m", "venv", str(self.python)], check=True, timeout=600)
        for line in re.sub(r"\\\n", " ", dockerfile.read_text()).splitlines():
            if line and not line.startswith("#"):
                word, _, rest = line.partition(" ")
                getattr(self, f"_{word.lower()}")(rest.strip())

    @property
    def home(self) -> Path:
        """The folder of the stage that is being made, the last one in the end."""
        return list(self._stages.values())[-1]

    def run(self, command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the last stage with the environment of the image and nothing of ours."""
        return subprocess.run(
            [self._here(word, self.home) for word in command],
            cwd=self.home,
            env={
                **{
                    key: value
                    for key, value in os.environ.items()
                    if key.startswith(("PIP_", "SSL_", "REQUESTS_")) or key.upper() in _PROXIES
                },
                "PATH": f"{self.python}/bin:/usr/bin:/bin",
                "HOME": str(self._folder),
                "PIP_CACHE_DIR": _CACHE,
                **self._pip,
                **{key: self._here(value, self.home) for key, value in self.env.items()},
                **env,
            },
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
            umask=0o022,
        )

    def _here(self, text: str, stage: Path) -> str:
        return text.replace(HOME, str(stage))

    def _arg(self, rest: str) -> None:
        name, has_default, default = rest.partition("=")
        if not self._stages:
            self._defaults[name] = default
        # Those before the first stage are known in a stage that names them again.
        value = default if has_default else self._defaults[name]
        self._arguments[name] = self._given.get(name, value)

    def _from(self, rest: str) -> None:
        self._arguments = {}
        name = rest.partition(" AS ")[2] or "last"
        stage = self._folder / "stages" / name
        stage.mkdir(parents=True)
        self._stages[name] = stage

    def _workdir(self, rest: str) -> None:
        assert rest == HOME

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        stage = None
        if sources[0].startswith("--from="):
            stage = self._stages[sources.pop(0).removeprefix("--from=")]
        for source in sources:
            path = Path(self._here(source, stage)) if stage else ROOT / source
            place = self.home / self._here(target, self.home)
            if path.is_dir():
                ignored = None if stage else shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, place, ignore=ignored, dirs_exist_ok=True)
            else:
                place = place / path.name if target.endswith("/") else place
                shutil.copy(path, place)
            if stage is None:
                subprocess.run(["chmod", "-R", "go=", str(place)], check=True, timeout=60)

    def _run(self, rest: str) -> None:
        assert HOME not in rest
        answer = self.run(["sh", "-ec", rest])
        if answer.returncode != 0:
            raise BuildError(f"{rest}\n{answer.stdout[-2000:]}{answer.stderr[-2000:]}")

    def _env(self, rest: str) -> None:
        self.env.update(_pairs(rest))

    def _label(self, rest: str) -> None:
        self.labels.update(_pairs(Template(rest).substitute(self._arguments)))

    def _user(self, rest: str) -> None:
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.entrypoint = [str(word) for word in json.loads(rest)]


def _pairs(text: str) -> dict[str, str]:
    words = (word.partition("=") for word in shlex.split(text))
    return {name: value for name, _, value in words}
