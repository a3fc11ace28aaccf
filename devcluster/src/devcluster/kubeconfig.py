"""Kubeconfig files: a server, its authority (embedded) and a bearer token."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml


def write(path: Path, server: str, ca_file: Path, token: str) -> Path:
    """Write a kubeconfig that only its owner can read, and return its path."""
    authority = base64.b64encode(ca_file.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "devcluster", "cluster": {"server": server, "certificate-authority-data": authority}}
        ],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "devcluster", "context": {"cluster": "devcluster", "user": "user"}}],
        "current-context": "devcluster",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path
