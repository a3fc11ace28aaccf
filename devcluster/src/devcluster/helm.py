"""helm, built from its Go module: for tests of charts, and for what is generated from them.

Built on first use (a minute or two on 2 cores) into the cache, like the control plane.
"""

from __future__ import annotations

from pathlib import Path

from devcluster.go_tool import GoTool

_MODULE = "helm.sh/helm/v3"
_KUBERNETES = (1, 37)
"""That of the modules which this helm is built from. Its releases are stamped with it; without it
`helm template` and `helm lint` take the cluster for a 1.20."""
_VERSION = "v3.22.0"
_HELM = GoTool(
    "helm",
    f"{_MODULE}/cmd/helm",
    _VERSION,
    variant=f"kubernetes-{_KUBERNETES[0]}.{_KUBERNETES[1]}",
    stamps={
        f"{_MODULE}/internal/version.version": _VERSION,
        **{
            f"{_MODULE}/{package}.k8sVersion{part}": str(number)
            for package in ("pkg/chartutil", "pkg/lint/rules")
            for part, number in zip(("Major", "Minor"), _KUBERNETES, strict=True)
        },
    },
)


def ensure_helm() -> Path:
    """The binary `helm`; builds it if it isn't cached. Raises RuntimeError if the build fails."""
    return _HELM.ensure()
