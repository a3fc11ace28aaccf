"""A registry on this machine's loopback, and what stands in it for the images of others."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devcluster.crane import ensure_crane
from devcluster.ports import PortClaims, listens
from devcluster.wait import wait_for


class Registry:
    """HOST:PORT of one that runs."""

    def __init__(self, address: str) -> None:
        self.address = address

    def crane(self, *arguments: str) -> str:
        """Run crane; returns what it prints."""
        done = subprocess.run(
            [ensure_crane(), *arguments], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def base(self, name: str, folder: Path) -> str:
        """Push an image of one file, with an environment, a command and a label of its own."""
        layer, reference = folder / "base.tar", f"{self.address}/{name}"
        with tarfile.open(layer, "w") as archive:
            member = tarfile.TarInfo("etc/base")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
        self.crane("append", "--oci-empty-base", f"--new_layer={layer}", f"--new_tag={reference}")
        self.crane(
            "mutate", reference, f"--tag={reference}", "--env=LANG=C.UTF-8", "--cmd=sh", "--label=of=base"
        )
        return reference

    def config(self, reference: str) -> dict[str, Any]:
        """What an image says of itself."""
        found: dict[str, Any] = json.loads(self.crane("config", reference))["config"]
        return found

    def files(self, reference: str, folder: Path) -> dict[str, tarfile.TarInfo]:
        """What is in an image, by name without a slash before it; unpacked in ``folder`` too."""
        archive = folder / "image.tar"
        self.crane("export", reference, str(archive))
        with tarfile.open(archive) as image:
            image.extractall(folder / "root", filter="data")
            return {member.name.strip("/"): member for member in image.getmembers()}


@contextmanager
def registry() -> Iterator[Registry]:
    """One that keeps nothing when it ends."""
    ports = PortClaims()
    port = ports.take()
    process = subprocess.Popen(
        [ensure_crane(), "registry", "serve", f"--address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: listens(process.pid, port), 60, "the registry listens")
        yield Registry(f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        ports.release()
