"""What the handler's image holds, made once a session by the steps of its Dockerfile."""

from __future__ import annotations

import pytest

from tests.dockerfile import ROOT, Build


@pytest.fixture(scope="session")
def handler_image(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The image of the handler."""
    return Build(ROOT / "docker" / "handler.Dockerfile", tmp_path_factory.mktemp("handler-image"))
