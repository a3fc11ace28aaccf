"""crane, built from its Go module: images and registries without a container engine.

Built on first use (a minute or two on 2 cores) into the cache, like the control plane.
"""

from __future__ import annotations

from pathlib import Path

from devcluster.go_tool import GoTool

_CRANE = GoTool("crane", "github.com/google/go-containerregistry/cmd/crane", "v0.22.1")


def ensure_crane() -> Path:
    """The binary `crane`; builds it if it isn't cached. Raises RuntimeError if the build fails."""
    return _CRANE.ensure()
