"""What the tests of the guides share."""

from __future__ import annotations

import pytest

from tests.guides.environment import GUIDES, GuidesEnvironment


@pytest.fixture(scope="session")
def guides() -> GuidesEnvironment:
    """The environment with the libraries, made if it is not there."""
    GUIDES.make()
    return GUIDES
