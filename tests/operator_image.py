"""What the operator's image holds, made once a session by the steps of its Dockerfile."""

from __future__ import annotations

import sys

import pytest

from tests import strict_python
from tests.dockerfile import ROOT, Build

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="session")
def operator_image(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The image of the operator, with a Python that is as strict as the base image's own."""
    folder = tmp_path_factory.mktemp("operator-image")
    found = strict_python.find()
    dockerfile = ROOT / "docker" / "operator.Dockerfile"
    built = Build(dockerfile, folder, found or sys.executable, REVISION=REVISION)
    if found is None:
        strict_python.play(built.python)
    return built
