"""Images: a name stands for a Python environment of this machine instead of a file system to pull."""

from __future__ import annotations

import json
import sys
from pathlib import Path


class PullError(Exception):
    """There is nothing to run in place of an image (kubelet: ErrImagePull)."""


class Images:
    """Which environment stands for which image."""

    def __init__(self, paths: dict[str, str]) -> None:
        """``paths``: image name -> directory that comes first in PATH; "*" is for all others.

        An empty map lets the environment of this very process stand for every image.
        """
        self._paths = paths or {"*": str(Path(sys.executable).parent)}

    @classmethod
    def load(cls, file: Path) -> Images:
        """Read a JSON object of image name -> directory, or -> {"path": directory}."""
        entries = json.loads(file.read_text())
        return cls({n: entry if isinstance(entry, str) else entry["path"] for n, entry in entries.items()})

    def path(self, image: str) -> str:
        """The directory of the image's programs.

        :raises PullError: neither the image nor "*" is in the map
        """
        found = self._paths.get(image) or self._paths.get("*")
        if found is None:
            known = ", ".join(sorted(self._paths))
            raise PullError(f"no environment for image {image!r}: the node agent knows {known}")
        return found
