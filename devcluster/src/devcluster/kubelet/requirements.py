"""What this machine must have, each told in a sentence: root, control groups, programs.

The programs are Debian's packages. They are installed by `devcluster packages --install` alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from devcluster.kubelet import cgroups

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "ptp": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "docker-registry": "docker-registry",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "busybox": "busybox-static",
}
"""What is run, and the package of Debian and Ubuntu that has it."""

_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


class MissingError(RuntimeError):
    """This machine can't have such nodes; the message is the sentence for the user."""


def check() -> None:
    """Raise MissingError if something is missing."""
    check_machine()
    if packages := missing_packages():
        raise MissingError(
            f"nodes with a kubelet need programs that are not here: {install_command(packages)} "
            "(or: devcluster packages --install)"
        )


def check_machine() -> None:
    """Raise MissingError if something is missing that no package has: root, control groups."""
    if os.geteuid() != 0:
        raise MissingError(
            "nodes with a kubelet need root: they mount, and have networks and control groups of their own; "
            "run it as root, by sudo for example"
        )
    if reason := cgroups.unusable():
        raise MissingError(f"nodes with a kubelet need control groups: {reason}")


def missing_packages() -> list[str]:
    """The packages of programs that are not here, in alphabetical order."""
    return sorted({package for program, package in PACKAGES.items() if _find(program) is None})


def install_command(packages: list[str]) -> str:
    """What installs them."""
    return " ".join(["apt-get install --yes --no-install-recommends", *packages])


def install() -> None:
    """Install what is missing. Raises MissingError if that would be in vain, or with what apt-get says."""
    check_machine()
    packages = missing_packages()
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise MissingError(f"there is no apt-get; install what has these programs: {', '.join(PACKAGES)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "--quiet"], install_command(packages).split()):
        # Without a limit: to end it half-way leaves packages that are neither there nor not.
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 or (packages := missing_packages()):
        raise MissingError(f"could not install {', '.join(packages)}: {done.stderr.strip()[-1000:]}")


def cni_folder() -> Path:
    """Where the network's plugins are. Raises MissingError if they are not there."""
    for folder in _CNI_FOLDERS:
        if (folder / "ptp").exists():
            return folder
    raise MissingError(f"the plugins of container networks are in none of {_CNI_FOLDERS}")


def _find(program: str) -> str | None:
    if program == "ptp":
        return next((str(folder) for folder in _CNI_FOLDERS if (folder / program).exists()), None)
    # The PATH of some users lacks the folders of root's own programs.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
