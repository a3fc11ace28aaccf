"""The cluster's registry: Docker's own, without TLS and without a password, reached by the nodes alone."""

from __future__ import annotations

from pathlib import Path

import yaml

from devcluster.api import ApiClient

PORT = 5000


def write(folder: Path, address: str) -> Path:
    """Write the configuration of one that keeps its images in `folder`; returns its file."""
    folder.mkdir()
    content = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": address},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def command(configuration: Path) -> list[str]:
    """Its command line."""
    return ["docker-registry", "serve", str(configuration)]


def answers(address: str) -> bool:
    """Whether there is a registry at HOST:PORT."""
    return ApiClient(f"http://{address}").is_ok("/v2/")
