"""helm, built from its Go module: for tests of charts, and for what is generated from them.

Built on first use (a minute or two on 2 cores) into the cache, like the control plane.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from devcluster.build import REPRODUCIBLE_AND_SMALL, find_go, go_environment, locked, run_with_progress, say
from devcluster.paths import cache_dir

HELM_VERSION = "v3.22.0"
_MODULE = "helm.sh/helm/v3"
_KUBERNETES = (1, 37)
"""That of the modules which this helm is built from. Its releases are stamped with it; without it
`helm template` and `helm lint` take the cluster for a 1.20."""


def ensure_helm() -> Path:
    """The binary `helm`; builds it if it isn't cached. Raises RuntimeError if the build fails."""
    target = cache_dir() / f"helm-{HELM_VERSION}-kubernetes-{_KUBERNETES[0]}.{_KUBERNETES[1]}"
    binary = target / "helm"
    if not binary.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(f"{target.name}.lock"), "helm"):
            if not binary.exists():
                _build(target)
    return binary


def _build(target: Path) -> None:
    say(f"building helm {HELM_VERSION} (a minute or two on 2 cores, then cached)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="helm-") as scratch:
        output = Path(scratch, "out")
        stamps = {"internal/version.version": HELM_VERSION}
        for package in ("pkg/chartutil", "pkg/lint/rules"):
            stamps |= {f"{package}.k8sVersionMajor": str(_KUBERNETES[0])}
            stamps |= {f"{package}.k8sVersionMinor": str(_KUBERNETES[1])}
        stamped = " ".join(f"-X {_MODULE}/{name}={value}" for name, value in stamps.items())
        program = f"{_MODULE}/cmd/helm@{HELM_VERSION}"
        command = [find_go(), "install", *REPRODUCIBLE_AND_SMALL, "-ldflags", f"-s -w {stamped}", program]
        run_with_progress(command, {**go_environment(), "GOBIN": str(output)}, began, Path(scratch))
        output.rename(target)
    say(f"built in {time.monotonic() - began:.0f} s: {target / 'helm'}")
