"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from devcluster.commands import AUTOSCALING, DISRUPTION, Options

pytest_plugins = [
    "tests.operator_fixtures",
    "tests.handler_image",
    "tests.operator_image",
]

# Without it an example fails that takes 200 ms: nothing is judged by how fast a busy machine is.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")


@pytest.fixture(scope="session")
def devcluster_options() -> Options:
    """The session's cluster: with budgets and autoscalers, and in every test tokens are replaced."""
    return Options(further_controllers=(DISRUPTION, AUTOSCALING), token_seconds=10.0)
