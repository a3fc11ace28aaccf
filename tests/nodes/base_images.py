"""What stands here for the images of others, which this machine need not reach: made of Debian's packages.

They have the names that our Dockerfiles, manifests and documents use, and the same programs at other places
and in other builds: Python from Debian's package instead of Docker's build of it, and torch without CUDA and
without libuv instead of PyTorch's own. What that can't show: PyTorch's image itself, and GPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.build import locked
from devcluster.kubelet.images import Images
from devcluster.paths import cache_dir

# Debian keeps pip from writing where its own packages are; Docker's image has none.
_PYTHON = (
    "ln -sf python3 /usr/bin/python; rm -f /usr/lib/python3*/EXTERNALLY-MANAGED; "
    "python --version; python -m pip --version"
)
_TORCHRUN = (
    "ln -sf python3 /usr/bin/python; "
    "printf '#!/usr/bin/python3\\nfrom torch.distributed.run import main\\nmain()\\n' "
    ">/usr/local/bin/torchrun; chmod +x /usr/local/bin/torchrun; torchrun --help >/dev/null"
)


@dataclass(frozen=True)
class Base:
    """An image made of packages of a release of Debian."""

    name: str
    names: tuple[str, ...]
    """Those by which it is pulled."""
    suite: str
    packages: tuple[str, ...]
    script: str
    then: str
    """Instructions of a Dockerfile."""


PACKAGES = "/packages"
"""Where a volume with a `Python`'s torch is mounted."""

PYTHON = Base(
    "localhost/python",
    ("docker.io/library/python:3.13-slim",),
    "trixie",
    ("python3", "python3-pip"),
    _PYTHON,
    "ENV PYTHONUNBUFFERED=1",
)
TORCH = Base(
    "localhost/torch",
    ("docker.io/pytorch/pytorch:latest", "docker.io/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"),
    "trixie",
    ("python3", "python3-torch", "python3-sklearn", "procps"),
    _TORCHRUN,
    # Debian's torch has no libuv, and workers of any torchrun ask for it: here they respect the variable.
    "ENV USE_LIBUV=0\nRUN sed -i 's/is_master=False,/is_master=False, use_libuv=use_libuv,/' "
    "/usr/lib/python3/dist-packages/torch/distributed/rendezvous.py",
)


def provide(images: Images) -> None:
    """Make them if they are not in the cache, and push them where nodes pull."""
    for base in (PYTHON, TORCH):
        images.debian(base.name, base.suite, base.packages, base.script, ["python3"])
        first, *others = base.names
        images.derive(first, base.name, base.then)
        images.push(first)
        for name in others:
            images.push(first, name.removeprefix("docker.io/"))


@dataclass(frozen=True)
class Python:
    """An image with a Python of this machine, and PyPI's torch, whose gigabytes are on a volume."""

    version: str
    torch: str
    """As pip is told; empty for the newest."""
    numpy: str = "numpy"
    """The same of numpy."""

    def __str__(self) -> str:
        return f"python-{self.version}-torch-{self.torch or 'newest'}"

    def provide(self, images: Images) -> str:
        """Make the image, and install torch on this machine; returns the name by which pods pull it.

        Fails the test if this machine has no such Python.
        """
        prefix = _prefix(self.version)
        name = f"docker.io/test/python:{self.version}"
        packages = (
            "libbz2-1.0",
            "libffi8",
            "libgomp1",
            "liblzma5",
            "libreadline8",
            "libsqlite3-0",
            "libssl3",
        )
        script = (
            "echo /python/lib >/etc/ld.so.conf.d/python.conf; ldconfig; "
            f"ln -s /python/bin/python{self.version} /usr/local/bin/python; "
            "python -c 'import bz2, ctypes, lzma, readline, sqlite3, ssl'"
        )
        images.debian(name, "bookworm", packages, script, ["python"], {"python": prefix})
        self._install_torch()
        return images.push(name)

    @property
    def container(self) -> dict[str, Any]:
        """Fields of the training container."""
        launcher = "elasticjob.run" if self.torch.startswith("2.4") else "torch.distributed.run"
        environment = [{"name": "PYTHONPATH", "value": PACKAGES}, {"name": "OMP_NUM_THREADS", "value": "1"}]
        return {"command": ["python", "-m", launcher, "train.py"], "env": environment}

    @property
    def folder(self) -> Path:
        """Where its packages are."""
        return cache_dir() / "torch" / str(self)

    def _install_torch(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.folder.parent / f"{self}.lock", str(self)):
            if self.folder.exists():
                return
            making = self.folder.parent / f"{self}.making"
            shutil.rmtree(making, ignore_errors=True)
            torch = f"torch=={self.torch}.*" if self.torch else "torch"
            uv = [
                sys.executable,
                "-m",
                "uv",
                "pip",
                "install",
                "--quiet",
                "--python",
                _interpreter(self.version),
            ]
            environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
            wanted = [torch, self.numpy, "scikit-learn"]
            subprocess.run([*uv, "--target", str(making), *wanted], check=True, env=environment)
            making.rename(self.folder)


# torch 2.4 is compiled against numpy 1.
PYTHONS = (Python("3.10", "2.4", "numpy<2"), Python("3.13", ""))
"""The oldest that the handler supports, and the newest."""


def _interpreter(version: str) -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    if not found:
        pytest.fail(f"{pyenv} has no Python to make an image of: pyenv install {version}")
    return str(found[-1])


def _prefix(version: str) -> Path:
    return Path(_interpreter(version)).parent.parent
