"""The steps of the Dockerfiles, run in a folder of their own: no image can be built here.

What this shows: the locked requirements install by their hashes, what is copied is there, and the result does
its work. What it does not: the base images, their Python, the user. Needs the package index, as a build does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from charts.generate import ROOT

HOME = "/opt/elasticjob"
"""The one folder that the Dockerfiles write to."""


class Build:
    """The stages of a Dockerfile, each a folder. Only instructions that ours use; others are an error."""

    def __init__(self, dockerfile: Path, folder: Path) -> None:
        self.env: dict[str, str] = {}
        self.entrypoint: list[str] = []
        self.user = ""
        self.labels: dict[str, str] = {}
        self._stages: dict[str, Path] = {}
        self._folder = folder
        # A Python with pip and nothing else, as `python` is in the base image.
        subprocess.run([sys.executable, "-m", "venv", str(folder / "python")], check=True, timeout=120)
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
                    if key.startswith(("PIP_", "SSL_", "REQUESTS_"))
                },
                "PATH": f"{self._folder}/python/bin:/usr/bin:/bin",
                "HOME": str(self._folder),
                **{key: self._here(value, self.home) for key, value in self.env.items()},
                **env,
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def _here(self, text: str, stage: Path) -> str:
        return text.replace(HOME, str(stage))

    def _arg(self, rest: str) -> None:
        assert "=" in rest

    def _from(self, rest: str) -> None:
        name = rest.partition(" AS ")[2] or "last"
        stage = self._folder / "stages" / name
        stage.mkdir(parents=True)
        self._stages[name] = stage

    def _workdir(self, rest: str) -> None:
        assert rest == HOME

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        context = ROOT
        if sources[0].startswith("--from="):
            stage = self._stages[sources.pop(0).removeprefix("--from=")]
            sources = [self._here(source, stage) for source in sources]
        place = self.home / self._here(target, self.home)
        for source in sources:
            path = context / source
            if path.is_dir():
                shutil.copytree(path, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                shutil.copy(path, place / path.name if target.endswith("/") else place)

    def _run(self, rest: str) -> None:
        assert HOME not in rest
        answer = self.run(["sh", "-ec", rest])
        assert answer.returncode == 0, f"{rest}\n{answer.stdout[-2000:]}{answer.stderr[-2000:]}"

    def _env(self, rest: str) -> None:
        self.env.update(_pairs(rest))

    def _label(self, rest: str) -> None:
        self.labels.update(_pairs(rest))

    def _user(self, rest: str) -> None:
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.entrypoint = [str(word) for word in json.loads(rest)]


def _pairs(text: str) -> dict[str, str]:
    words = (word.partition("=") for word in shlex.split(text))
    return {name: value for name, _, value in words}


@pytest.mark.parametrize("name", ["operator", "handler"])
def test_every_requirement_is_locked_by_hashes(name: str) -> None:
    for kind in (name, "build"):
        text = (ROOT / "docker" / f"{kind}-requirements.txt").read_text()
        packages = re.findall(r"^([A-Za-z0-9._-]+)==([^\\\n]*(?:\\\n[^\\\n]*)*)$", text, re.MULTILINE)
        assert packages
        assert all("--hash=sha256:" in rest for _, rest in packages)
        assert "--index-url" not in text


def test_operator(tmp_path: Path) -> None:
    built = Build(ROOT / "docker" / "operator.Dockerfile", tmp_path)
    assert built.user == "65532:65532"
    assert built.labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    answer = built.run([*built.entrypoint, "--help"])
    assert answer.returncode == 0, answer.stderr
    assert "--health-probe-bind-address" in answer.stdout
    where = built.run(
        [
            "python",
            "-c",
            "import elasticjob_operator.app as a, elasticjob as e; print(a.__file__, e.__file__)",
        ]
    )
    assert all(path.startswith(str(built.home)) for path in where.stdout.split()), where.stdout + where.stderr


def test_handler(tmp_path: Path) -> None:
    built = Build(ROOT / "docker" / "handler.Dockerfile", tmp_path)
    assert built.user == "65532:65532"
    target = tmp_path / "injected"
    target.mkdir()
    copied = built.run([*built.entrypoint, str(target)])
    assert copied.returncode == 0, copied.stderr
    assert {path.name.partition("-")[0] for path in target.iterdir()} == {"elasticjob", "urllib3"}
    assert not [path for path in target.rglob("*") if path.suffix in (".so", ".pyc")]
    found = (
        "from importlib.metadata import entry_points; "
        "(entry,) = entry_points(group='torchrun.handlers'); print(entry.name, entry.value); "
        "import elasticjob.api.connection, urllib3; print(urllib3.__file__)"
    )
    answer = built.run(["python", "-c", found], PYTHONPATH=str(target))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [
        "k8s",
        "elasticjob.entry:get_handler",
        str(target / "urllib3/__init__.py"),
    ]
