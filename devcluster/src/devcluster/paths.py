"""Where devcluster keeps what outlives a process: built binaries and named clusters, in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/devcluster`, or the same below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "devcluster"


def named_cluster_dir(name: str) -> Path:
    """The state folder of the cluster that `python -m devcluster up --name NAME` keeps."""
    return cache_dir() / "clusters" / name
