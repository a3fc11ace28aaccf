"""`make images`: both images in a registry without a container engine, from the Dockerfiles' own steps.

The registry is a real one (crane's). In it are images of one file in place of Docker Hub's: nothing here runs
a base image's programs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticjob
from charts import images
from tests import strict_python
from tests.chart.registry import Registry, registry
from tests.dockerfile import HOME, ROOT, Build
from tests.docs_commands import run

LABEL = "org.opencontainers.image."


def words(document: str, name: str, environment: dict[str, str]) -> None:
    """Run what a document tells to."""
    run(ROOT / document, name, environment, timeout=1200)


@pytest.fixture(scope="module")
def pushed_to() -> Iterator[Registry]:
    """A registry without anything in it."""
    with registry() as started:
        yield started


@pytest.fixture
def bases(pushed_to: Registry, tmp_path: Path) -> dict[str, str]:
    """The environment that names what stands for the base images."""
    return {
        "PYTHON_IMAGE": pushed_to.base("library/python:3.13-slim", tmp_path),
        "COPY_IMAGE": pushed_to.base("library/busybox:1.37", tmp_path),
    }


def agrees(found: Registry, reference: str, base: str, built: Build, folder: Path) -> dict[str, str]:
    """The image has its base, what the Dockerfile makes, and its settings; returns its environment."""
    config = found.config(reference)
    assert config["Entrypoint"] == built.entrypoint
    assert config["User"] == built.user
    assert not config.get("Cmd"), "that of the base was for its own entry point"
    environment = dict(pair.split("=", 1) for pair in config["Env"])
    assert environment == {"LANG": "C.UTF-8", **built.env}
    labels = {name: value for name, value in config["Labels"].items() if name.startswith(LABEL)}
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels.pop(f"{LABEL}revision"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels.pop(f"{LABEL}created"))
    assert labels.pop(f"{LABEL}base.name") == base
    assert labels.items() <= built.labels.items()
    assert config["Labels"]["of"] == "base"
    files = found.files(reference, folder)
    assert "etc/base" in files
    ours = {name: member for name, member in files.items() if name.startswith(HOME[1:])}
    there = {f"{HOME[1:]}/{path.relative_to(built.home)}": path for path in built.home.rglob("*")}
    assert {name for name in ours if ".pyc" not in name} - {HOME[1:]} == {n for n in there if ".pyc" not in n}
    assert {(member.uid, member.gid) for member in ours.values()} == {(0, 0)}
    assert [n for n, path in there.items() if n in ours and ours[n].mode != path.stat().st_mode & 0o777] == []
    return environment


def test_the_handlers_image(
    pushed_to: Registry,
    bases: dict[str, str],
    handler_image: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, reference in bases.items():
        monkeypatch.setenv(name, reference)
    where = f"{pushed_to.address}/ml"
    assert images.main([where, "--only=handler", "--tag=test"]) == 0
    agrees(pushed_to, f"{where}/elasticjob-handler:test", bases["COPY_IMAGE"], handler_image, tmp_path)
    site = tmp_path / "root" / HOME[1:] / "site"
    says = "import elasticjob, elasticjob._vendor.urllib3 as u; print(elasticjob.__file__, u.__name__)"
    printed = subprocess.check_output(
        [sys.executable, "-S", "-c", says], env={"PYTHONPATH": str(site)}, text=True, timeout=60
    )
    assert printed.split() == [f"{site}/elasticjob/__init__.py", "elasticjob._vendor.urllib3"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_push_both(
    pushed_to: Registry, bases: dict[str, str], operator_image: Build, tmp_path: Path
) -> None:
    where = f"{pushed_to.address}/team"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {**os.environ, **bases, "PATH": path, "REGISTRY": where, "PYTHON": sys.executable}
    words("docs/operate/install.md", "make-images", given)
    tag = elasticjob.__version__
    names = [line.split(":")[0] for line in pushed_to.crane("catalog", pushed_to.address).split()]
    assert {"team/elasticjob-operator", "team/elasticjob-handler"} <= set(names)
    reference = f"{where}/elasticjob-operator:{tag}"
    environment = agrees(pushed_to, reference, bases["PYTHON_IMAGE"], operator_image, tmp_path)
    python = strict_python.find()
    if python is None:
        pytest.skip("no Python here can start what is in the image")
    site = tmp_path / "root" / HOME[1:] / "site"
    started = subprocess.run(
        [python, *pushed_to.config(reference)["Entrypoint"][1:], "--help"],
        env={**environment, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "--health-probe-bind-address" in started.stdout, started.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_image_for_another_processor_has_its_wheels(
    pushed_to: Registry, bases: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, reference in bases.items():
        monkeypatch.setenv(name, reference)
    where = f"{pushed_to.address}/other"
    assert images.main([where, "--only=operator", "--platform=linux/arm64"]) == 0
    files = pushed_to.files(f"{where}/elasticjob-operator:{elasticjob.__version__}", tmp_path)
    compiled = [name for name in files if name.endswith(".so")]
    assert compiled
    assert [name for name in compiled if "x86_64" in name] == []


def test_a_base_image_that_is_not_there_is_named_before_anything_is_built(
    pushed_to: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COPY_IMAGE", f"{pushed_to.address}/no/such:1")
    assert images.main([f"{pushed_to.address}/ml", "--only=handler"]) == 1
    said = capsys.readouterr().err
    assert f"no base image {pushed_to.address}/no/such:1: " in said
    assert "COPY_IMAGE name others" in said


def test_what_cannot_be_pushed_says_how_to_log_in() -> None:
    with pytest.raises(images.ImagesError, match=r"x was not pushed: cat: .*\nWhat to do: log in"):
        images._run(["cat", "/no/such"], "x was not pushed", "log in")


def test_make_images_asks_where_to() -> None:
    answer = subprocess.run(
        ["make", "images", "REGISTRY="], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode != 0
    assert "make images REGISTRY=registry.example/ml" in answer.stdout + answer.stderr
