"""helm, and the chart as it renders it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.helm import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a cluster; built the first time."""
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def packed(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as `helm package` packs it: with the definition's content in place of the link."""
    folder = tmp_path_factory.mktemp("packed")
    helm.run("package", str(helm.chart), "--destination", str(folder))
    (archive,) = folder.glob("*.tgz")
    return archive
