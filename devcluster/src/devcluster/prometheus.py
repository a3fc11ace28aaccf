"""prometheus and promtool, built from their Go module: for tests of metrics, of alerts and of dashboards.

Without service discovery, which would be most of the build: what is scraped is named in the configuration.
Nor has it its web pages, which are built with another tool.
"""

from __future__ import annotations

from pathlib import Path

from devcluster.go_tool import GoModule

_VERSION = "3.13.5"
_PROMETHEUS = GoModule(
    "prometheus",
    "github.com/prometheus/prometheus",
    # The module's versions have the number 0.313.5 for 3.13.5.
    f"v0.3{_VERSION.partition('.')[2]}",
    programs=("cmd/prometheus", "cmd/promtool"),
    tags=("remove_all_sd",),
    stamps={"github.com/prometheus/common/version.Version": _VERSION},
    minutes="some 5 minutes",
)


def ensure_prometheus() -> Path:
    """The folder with the binaries `prometheus` and `promtool`; builds them if they aren't cached.

    Raises RuntimeError if the build fails.
    """
    return _PROMETHEUS.ensure()
