"""Images: a name stands for a Python environment of this machine instead of a file system to pull."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.nodeagent.mounts import Mount


class PullError(Exception):
    """There is nothing to run in place of an image (kubelet: ErrImagePull)."""


@dataclass(frozen=True)
class Image:
    """What stands for an image. ``path``: the directory of its programs, the first in PATH."""

    path: str
    mounts: list[Mount] = field(default_factory=list)
    """Directories of this machine that a container sees where the image has them."""


class Images:
    """Which environment stands for which image, as a file says at the moment: more may be added to it."""

    def __init__(self, file: Path) -> None:
        """``file``: a JSON object of image name -> directory, or -> {"path": directory, "mounts":
        {place in the container: directory}}, or -> null: it can't be pulled. "*" is for all others."""
        self._file = file

    def find(self, image: str) -> Image:
        """What stands for the image.

        :raises PullError: neither the image nor "*" is in the file
        """
        entries = json.loads(self._file.read_text())
        entry = entries.get(image, entries.get("*"))
        if entry is None:
            known = ", ".join(sorted(name for name in entries if entries[name] is not None))
            raise PullError(f"no environment for image {image!r}: the node agent knows {known}")
        if isinstance(entry, str):
            return Image(entry)
        mounts = [Mount(source, target, read_only=True) for target, source in entry.get("mounts", {}).items()]
        return Image(entry["path"], mounts)
