"""Fixtures of the tests of the node agent.

Two agents of the tests' own play nodes beside those of the session's cluster: one as it comes (with
namespaces if the tests run as root), one without namespaces as for a user who is not root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from agent_pods import Agent, Pods
from devcluster.cluster import Cluster


@pytest.fixture(scope="module", params=["plain", pytest.param("rootless", marks=pytest.mark.slow)])
def agent(request: pytest.FixtureRequest, devcluster: Cluster, tmp_path_factory: Any) -> Iterator[Agent]:
    """An agent with the mode of this machine, and one that does without namespaces."""
    options = ["--rootless"] if request.param == "rootless" else []
    folder = tmp_path_factory.mktemp(request.param)
    running = Agent(devcluster, folder, request.param, "--backoff=0.3", *options)
    with contextlib.closing(running):
        yield running


@pytest.fixture
def pods(agent: Agent, namespace: str) -> Pods:
    """Pods in a namespace of the test's own."""
    return Pods(agent, namespace)
