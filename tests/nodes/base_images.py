"""What stands here for the images of others, which this machine need not reach: made of Debian's packages.

They have the names that our Dockerfiles, manifests and documents use, and the same programs at other places
and in other builds: Python from Debian's package instead of Docker's build of it, and torch without CUDA and
without libuv instead of PyTorch's own. What that can't show: PyTorch's image itself, and GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from devcluster.kubelet.images import Images

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

    names: tuple[str, ...]
    suite: str
    packages: tuple[str, ...]
    script: str


PYTHON = Base(("docker.io/library/python:3.13-slim",), "trixie", ("python3", "python3-pip"), _PYTHON)
TORCH = Base(
    ("docker.io/pytorch/pytorch:latest", "docker.io/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"),
    "trixie",
    ("python3", "python3-torch", "python3-sklearn", "procps"),
    _TORCHRUN,
)


def provide(images: Images) -> None:
    """Make them if they are not in the cache, and push them where nodes pull."""
    for base in (PYTHON, TORCH):
        first, *_ = base.names
        images.debian(first, base.suite, base.packages, base.script, ["python3"])
        for name in base.names:
            images.push(first, name.removeprefix("docker.io/"))
