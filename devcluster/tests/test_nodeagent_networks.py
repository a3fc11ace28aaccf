"""Pods with networks of their own, and cuts between them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_pods import BEAT, SECONDS, Agent, Pods, is_ready, needs_root, python
from devcluster.cluster import Cluster
from devcluster.wait import wait_for

pytestmark = pytest.mark.devcluster


# Networks of their own

_NETNS = {"annotations": {"devcluster/network": "netns"}}

_ECHO = """
import socket, threading
def echo(connection):
    while data := connection.recv(100):
        connection.sendall(data)
server = socket.create_server(("", 7000))
while True:
    connection, _ = server.accept()
    threading.Thread(target=echo, args=[connection], daemon=True).start()
"""

_CALL = """
import socket, sys, time
connection = None
while True:
    try:
        if connection is None:
            connection = socket.create_connection((sys.argv[1], 7000), 0.5)
            connection.settimeout(0.5)
            print("connected")
        connection.sendall(b"x")
        connection.recv(1)
        print("echo")
    except TimeoutError:
        print("silence")
    except OSError as error:
        print("error", error)
        connection = None
    time.sleep(0.05)
"""


@pytest.fixture
def isolated_pods(devcluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Pods]:
    """Pods on an agent of their own (it is not needed in both modes)."""
    agent = Agent(devcluster, tmp_path, "netns")
    with contextlib.closing(agent):
        yield Pods(agent, namespace)


@needs_root
def test_pods_with_networks_talk_and_can_be_cut(isolated_pods: Pods) -> None:
    pods, client = isolated_pods, isolated_pods.agent.client
    probe = {"periodSeconds": 1, "tcpSocket": {"port": 7000}}
    pods.run("server", python(_ECHO), metadata=_NETNS, readinessProbe=probe)
    server = pods.wait("server", "is ready", is_ready)
    address = server["status"]["podIP"]
    assert address.startswith("10.")
    pods.run("near", [*python(_CALL), address], metadata=_NETNS)
    pods.run("far", [*python(_CALL), address], metadata=_NETNS, node=1)
    pods.run("beats", python(BEAT), metadata=_NETNS)
    for name, word in (("near", "echo"), ("far", "echo"), ("beats", "reached")):
        pods.wait_log(name, word)

    def hears(name: str, word: str) -> None:
        """It prints ``word`` twice from now on: the first may have been on its way."""
        before = pods.log(name).count(word)
        wait_for(
            lambda: pods.log(name).count(word) > before + 1, SECONDS, lambda: f"{word} in {pods.log(name)}"
        )

    client.cut_node(pods.agent.nodes[0])
    hears("far", "silence")
    hears("near", "echo")
    hears("beats", "lost")
    client.restore_node(pods.agent.nodes[0])
    hears("far", "echo")
    for direction in ("in", "out", "both"):
        client.cut_pod(pods.namespace, "server", direction)
        hears("near", "silence")
        hears("far", "silence")
        client.restore_pod(pods.namespace, "server")
        hears("near", "echo")
        hears("far", "echo")
    client.cut_path(pods.namespace, "server", "far")
    hears("far", "silence")
    hears("near", "echo")
    client.restore_path(pods.namespace, "server", "far")
    hears("far", "echo")
    for name in ("near", "far"):
        assert "error" not in pods.log(name), "packets were lost, nothing was refused or reset"
        assert pods.log(name).count("connected") == 1, "the connection has lived through it all"
    client.cut_pod(pods.namespace, "beats", "both")
    hears("beats", "lost")


def test_a_network_of_its_own_without_root_is_refused(pods: Pods) -> None:
    if "user" not in pods.agent.nodes[0] and os.geteuid() == 0:
        pytest.skip("root can have them")
    pods.run("netns", ["true"], metadata=_NETNS)
    assert "needs root" in pods.wait_waiting("netns", "ContainerCreating")
