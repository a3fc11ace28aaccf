"""The steps of the Dockerfiles, run in a folder of their own: no image can be built here.

What this shows: the locked requirements install by their hashes, what is copied is there, and the result does
its work. What it does not: the base images. Needs the package index, as a build does. The operator is started
as its user by `test_image_starts`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

import elasticjob
from elasticjob_operator.act.injection import HANDLER_DIR
from tests.dockerfile import ROOT, Build
from tests.operator_image import REVISION
from tests.unit.test_injection import injected

DOCKER = ROOT / "docker"
OF_A_PACKAGE = {"LICENSE", "README.md", "elasticjob", "elasticjob_operator", "pyproject.toml"}
LABEL = "org.opencontainers.image."


@pytest.mark.parametrize("kind", ["operator", "handler", "build"])
def test_every_requirement_is_locked_by_hashes(kind: str) -> None:
    text = (DOCKER / f"{kind}-requirements.txt").read_text()
    packages = re.findall(r"^([A-Za-z0-9._-]+)==([^\\\n]*(?:\\\n[^\\\n]*)*)$", text, re.MULTILINE)
    assert packages
    assert all("--hash=sha256:" in rest for _, rest in packages)
    assert "--index-url" not in text


def test_what_is_locked_has_a_wheel_for_every_platform() -> None:
    """A builder of another processor is not needed: the packages are unpacked, and nothing of them is run."""
    answer = subprocess.run(
        [DOCKER / "lock.sh", "--check"],
        env={
            **os.environ,
            "UV": str(Path(sys.executable).parent / "uv"),
            "UV_SYSTEM_CERTS": "1",
            "UV_NATIVE_TLS": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.findall(r"operator-requirements.txt on (\w+?)-", answer.stdout) == ["x86_64", "aarch64"]


@pytest.mark.parametrize("name", ["operator", "handler"])
def test_every_builder_can_build_it(name: str) -> None:
    """Not BuildKit alone: `FROM --platform=$BUILDPLATFORM` fails in `docker build` without buildx."""
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    assert re.findall(r"^[A-Z]+ --(?!from=)\S+", text, re.MULTILINE) == []


def test_the_context_is_what_the_dockerfiles_copy() -> None:
    """Not a virtual environment of gigabytes, nor what lies about in the packages' folders."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    first, *rest = [line for line in lines if not line.startswith("#")]
    assert first == "*"
    assert [line for line in rest if not line.startswith("!")] == ["**/__pycache__"]
    sent = {line.removeprefix("!") for line in rest if line.startswith("!")}
    text = "".join(file.read_text() for file in DOCKER.glob("*.Dockerfile"))
    copied = [line.split()[:-1] for line in re.findall(r"^COPY ((?!--from).*)$", text, re.MULTILINE)]
    assert sent == {
        str(part.relative_to(ROOT))
        for source in (ROOT / source for sources in copied for source in sources)
        for part in (source.iterdir() if source.is_dir() else [source])
        if part == source or part.name in OF_A_PACKAGE
    }


@pytest.mark.parametrize("name", ["operator", "handler"])
def test_labels(name: str, request: pytest.FixtureRequest) -> None:
    image: Build = request.getfixturevalue(f"{name}_image")
    assert all(image.labels[f"{LABEL}{one}"] for one in ("description", "licenses"))
    assert image.labels[f"{LABEL}title"] == f"elasticjob-{name}"
    assert image.labels[f"{LABEL}version"] == elasticjob.__version__
    base = {"operator": "docker.io/library/python:3.13-slim", "handler": "docker.io/library/busybox:1.37"}
    assert image.labels[f"{LABEL}base.name"] == base[name]
    # Empty where nothing is given, and never what the base image says of itself.
    assert image.labels[f"{LABEL}revision"] == {"operator": REVISION, "handler": ""}[name]
    assert image.labels[f"{LABEL}created"] == ""


@pytest.mark.parametrize("name", ["operator", "handler"])
def test_scanners_find_what_is_locked_and_nothing_else(name: str, request: pytest.FixtureRequest) -> None:
    """They go by `*.dist-info/METADATA`, wherever it is: what lacks it is not there for them."""
    image: Build = request.getfixturevalue(f"{name}_image")
    found = [Distribution.at(file.parent) for file in image.home.rglob("*.dist-info/METADATA")]
    text = (DOCKER / f"{name}-requirements.txt").read_text()
    locked = re.findall(r"^([\w.-]+==\S+)", text, re.MULTILINE)
    assert ";" not in text, "every platform has the same"
    ours = {"operator": ["elasticjob", "elasticjob-operator"], "handler": ["elasticjob"]}[name]
    assert sorted(f"{_normal(one.name)}=={one.version}" for one in found) == sorted(
        [*locked, *(f"{one}=={elasticjob.__version__}" for one in ours)]
    )


@pytest.mark.parametrize("name", ["operator", "handler"])
def test_its_user_can_read_everything_and_write_nothing(name: str, request: pytest.FixtureRequest) -> None:
    image: Build = request.getfixturevalue(f"{name}_image")
    assert image.user == "65532:65532"
    modes = {path: path.stat().st_mode for path in image.home.rglob("*")}
    assert [path for path, mode in modes.items() if not mode & 0o004] == []
    assert [path for path, mode in modes.items() if path.is_dir() and not mode & 0o001] == []
    assert [path for path, mode in modes.items() if mode & 0o022] == []


def test_operator(operator_image: Build) -> None:
    built = operator_image
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
    # The folder of the build stage means nothing to those who run the image.
    assert list(built.home.rglob("direct_url.json")) == []


def test_byte_code_of_the_operator_is_used_whatever_times_its_files_have(operator_image: Build) -> None:
    """A builder may set them all to one (SOURCE_DATE_EPOCH), and the root file system cannot be written."""
    compiled = list(operator_image.home.rglob("*.pyc"))
    assert len(compiled) == len(list(operator_image.home.rglob("*.py")))
    # The flags of PEP 552: by hash, and not compared.
    assert {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled} == {0b01}


def test_handler(handler_image: Build, tmp_path: Path) -> None:
    copied = handler_image.run([*handler_image.entrypoint, str(tmp_path)])
    assert copied.returncode == 0, copied.stderr
    # Nothing that could hide what a training image has under the same name.
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"elasticjob"}
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".so", ".pyc")]
    assert list((tmp_path / "elasticjob/_vendor").glob("urllib3-*.dist-info/licenses/LICENSE.txt"))
    found = (
        "import elasticjob.api.connection as c, sys; print(c.urllib3.__file__, 'urllib3' in sys.modules);"
        "from importlib.metadata import entry_points, requires; print(requires('elasticjob'));"
        "print(*((e.name, e.value) for e in entry_points(group='torchrun.handlers')))"
    )
    answer = handler_image.run(["python", "-c", found], PYTHONPATH=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        f"{tmp_path}/elasticjob/_vendor/urllib3/__init__.py False",
        "None",
        "('k8s', 'elasticjob.entry:get_handler')",
    ]
    # What a user's `pip freeze` has of it is no path of the image's build.
    frozen = handler_image.run(["python", "-m", "pip", "freeze"], PYTHONPATH=str(tmp_path))
    assert frozen.stdout.split() == [f"elasticjob=={elasticjob.__version__}"], frozen.stderr


def test_the_command_of_the_init_container_is_the_image_s_own(handler_image: Build) -> None:
    (container,) = injected({"containers": [{}]})["initContainers"]
    assert container["command"] == [*handler_image.entrypoint, HANDLER_DIR]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
