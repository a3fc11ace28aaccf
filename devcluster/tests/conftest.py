"""Fixtures of the tests of the node agent.

Two agents of the tests' own play nodes beside those of the session's cluster: one as it comes, one
of a user who is not root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from agent_pods import Agent, Pods
from devcluster.cluster import Cluster


@pytest.fixture(scope="module", params=["plain", pytest.param("user", marks=pytest.mark.slow)])
def agent(request: pytest.FixtureRequest, devcluster: Cluster, tmp_path_factory: Any) -> Iterator[Agent]:
    """An agent of the user who runs the tests, and one of a user who is not root."""
    folder = tmp_path_factory.mktemp(request.param)
    running = Agent(devcluster, folder, request.param, as_user=request.param == "user")
    with contextlib.closing(running):
        yield running


@pytest.fixture
def pods(agent: Agent, namespace: str) -> Pods:
    """Pods in a namespace of the test's own."""
    return Pods(agent, namespace)
