"""What the images of `make test-nodes` are made of."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from devcluster.kubelet.images import Images
from tests.nodes.base_images import Python


def test_a_python_that_is_not_here_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A test that is skipped would leave the run green."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(
        pytest.fail.Exception, match=r"has no Python to make an image of: pyenv install 3\.10"
    ):
        Python("3.10", "2.4").provide(cast(Images, None))
