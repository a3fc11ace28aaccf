"""``make images``: build both images and push them to a registry, without a container engine.

    python -m charts.images registry.example/ml                         # for this machine's processor
    python -m charts.images registry.example/ml --platform linux/arm64  # for another
    python -m charts.images localhost:5000/ml --only handler

The steps of the Dockerfiles run in a folder. What they make becomes one layer, which crane puts on the base
image of the last stage, straight from registry to registry: no step of ours needs the base image's programs.
Needs the package index, the base images' registry, and Go for crane (devcluster brings it). PYTHON_IMAGE and
COPY_IMAGE in the environment name other base images.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import elasticjob
from devcluster.crane import ensure_crane
from tests import strict_python
from tests.dockerfile import HOME, ROOT, Build, BuildError

IMAGES = ("operator", "handler")
PLATFORMS = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""The platforms of images, with their names in wheels."""

_MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64", "arm64": "linux/arm64"}
_PUSH_SECONDS = 3600.0


class ImagesError(Exception):
    """An image could not be made or pushed; the text says why, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    own = _MACHINES.get(platform.machine())
    parser = argparse.ArgumentParser(
        prog="make images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("registry", help="where to push them, such as registry.example/ml")
    parser.add_argument("--platform", choices=sorted(PLATFORMS), default=own, required=own is None)
    parser.add_argument("--tag", default=elasticjob.__version__, help="default: the version, %(default)s")
    parser.add_argument("--only", choices=IMAGES, help="one image instead of both")
    parser.add_argument(
        "--insecure", action="store_true", help="a registry without TLS that is not localhost"
    )
    given = parser.parse_args(arguments)
    registry = given.registry.rstrip("/")
    try:
        for name in [given.only] if given.only else IMAGES:
            reference = f"{registry}/elasticjob-{name}:{given.tag}"
            print(f"{name}: building", file=sys.stderr, flush=True)
            print(make(name, reference, given.platform, insecure=given.insecure), flush=True)
    except ImagesError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make(name: str, reference: str, wanted: str, insecure: bool = False) -> str:
    """Build an image for a platform and push it as ``reference``; returns that by digest.

    Raises ImagesError.
    """
    dockerfile = ROOT / "docker" / f"{name}.Dockerfile"
    base = base_of(dockerfile.read_text())
    crane = [str(ensure_crane()), f"--platform={wanted}", *(["--insecure"] if insecure else [])]
    _run([*crane, "digest", base], f"no base image {base}", "PYTHON_IMAGE and COPY_IMAGE name others")
    with tempfile.TemporaryDirectory() as scratch:
        image = _build(dockerfile, Path(scratch, "image"), wanted)
        layer = Path(scratch, "layer.tar")
        pack(image.home, layer)
        print(f"{name}: putting it on {base}, to {reference}", file=sys.stderr, flush=True)
        command = [*crane, "mutate", base, f"--append={layer}", f"--tag={reference}", *settings(image)]
        host = reference.partition("/")[0]
        login = f"{crane[0]} auth login {host} --username NAME --password-stdin"
        advice = f"if {host} asks for a password, `{login}`, then again"
        return _run(command, f"{reference} was not pushed", advice).split()[-1]


def base_of(dockerfile: str) -> str:
    """The reference of the last stage's base image."""
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", dockerfile, re.MULTILINE))
    name = re.findall(r"^FROM \$\{(\w+)\}", dockerfile, re.MULTILINE)[-1]
    return os.environ.get(name) or defaults[name]


def settings(image: Build) -> Iterator[str]:
    """What the last stage of a Dockerfile says of its image, as flags of `crane mutate`."""
    yield f"--user={image.user}"
    for flag, pairs in (("env", image.env), ("label", image.labels)):
        # crane splits a value at its commas if there is another `=` in it.
        yield from (f"--{flag}={name}={value}" for name, value in pairs.items())
    yield from (f"--entrypoint={word}" for word in image.entrypoint)


def pack(home: Path, layer: Path) -> None:
    """Write the layer that has this folder as /opt/elasticjob: root's, and the same for the same files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(layer, "w") as archive:
        for path in reversed([Path(HOME), *Path(HOME).parents][:-1]):
            folder = tarfile.TarInfo(str(path.relative_to("/")))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(plain(folder))
        for path in sorted(home.rglob("*")):
            archive.add(path, f"{HOME[1:]}/{path.relative_to(home)}", recursive=False, filter=plain)


def _build(dockerfile: Path, folder: Path, wanted: str) -> Build:
    bases = {name: os.environ[name] for name in ("PYTHON_IMAGE", "COPY_IMAGE") if os.environ.get(name)}
    said = re.search(r"^ARG PYTHON_IMAGE=\S+?:(\d+\.\d+)", dockerfile.read_text(), re.MULTILINE)
    assert said is not None
    version, interpreter = said[1], _python(said[1])
    machine = PLATFORMS[wanted]
    wheels = " ".join(f"{kind}_{machine}" for kind in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"))
    pip = {"PIP_PYTHON_VERSION": version, "PIP_IMPLEMENTATION": "cp", "PIP_PLATFORM": wheels}
    labels = {"REVISION": _revision(), "CREATED": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
    try:
        image = Build(dockerfile, folder, interpreter or sys.executable, pip, **labels, **bases)
    except BuildError as error:
        raise ImagesError(f"a step of {dockerfile.relative_to(ROOT)} failed: {error}") from None
    if interpreter is None:
        compiled = list(image.home.rglob("__pycache__"))
        if compiled:
            print(f"no Python {version} here: the image has no byte code, and starts slower", file=sys.stderr)
        for cache in compiled:
            shutil.rmtree(cache)
    return image


def _python(version: str) -> str | None:
    """A Python of this version, whose byte code the image's own can use."""
    for name in (sys.executable, shutil.which(f"python{version}"), strict_python.find()):
        if name is None:
            continue
        ask = [name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
        if answer.stdout.strip() == version:
            return name
    return None


def _revision() -> str:
    """The commit; empty where this is no checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return ""
    return answer.stdout.strip()


def _run(command: Sequence[str], failure: str, advice: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PUSH_SECONDS, check=False)
    if done.returncode != 0:
        raise ImagesError(f"{failure}: {done.stderr.strip()[-2000:]}\nWhat to do: {advice}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
