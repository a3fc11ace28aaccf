"""Small parts of the node agent: addresses, images, back-off, the end of a log, the end of the runtime."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from devcluster.nodeagent.images import Image, Images, PullError
from devcluster.nodeagent.logs_server import start_of_last_lines
from devcluster.nodeagent.mounts import Mount
from devcluster.nodeagent.network import AddressPool, LoopbackRange
from devcluster.nodeagent.workload import Backoff


def test_address_is_used_again_as_late_as_possible() -> None:
    pool = AddressPool(IPv4Network("10.0.0.0/29"))
    taken = [pool.take() for _ in range(3)]
    assert taken == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    pool.give_back("10.0.0.1")
    assert [pool.take() for _ in range(4)] == ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.1"]
    with pytest.raises(RuntimeError, match="are taken"):
        pool.take()


def test_agents_on_one_machine_have_different_addresses() -> None:
    first, second = LoopbackRange(), LoopbackRange()
    try:
        assert len({r.take() for r in (first.pods, first.nodes, second.pods, second.nodes)}) == 4
    finally:
        first.close()
        second.close()


def test_images(tmp_path: Path) -> None:
    file = tmp_path / "images.json"
    file.write_text(
        json.dumps({"known:1": {"path": "/one", "mounts": {"/opt/x": "/files"}}, "short:1": "/two"})
    )
    images = Images(file)
    assert images.find("known:1") == Image("/one", [Mount("/files", "/opt/x", read_only=True)])
    assert images.find("short:1") == Image("/two")
    with pytest.raises(PullError, match="no environment for image 'other:1'"):
        images.find("other:1")
    file.write_text(json.dumps({"*": "/all"}))
    assert images.find("other:1") == Image("/all"), "what is added later counts"
    file.write_text(json.dumps({"*": "/all", "other:1": None}))
    with pytest.raises(PullError, match=r"no environment for image 'other:1': the node agent knows \*"):
        images.find("other:1")


def test_backoff() -> None:
    backoff = Backoff(first=1, cap=30)
    assert [backoff.delay(failures) for failures in range(1, 9)] == [0, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc\n", 9, "a\nb\nc\n"),
        ("a\nb\nc", 1, "c"),
        ("a\n", 0, ""),
        ("", 3, ""),
        ("x" * 200_000 + "\nend\n", 1, "end\n"),
    ],
)
def test_end_of_a_log(tmp_path: Path, text: str, lines: int, expected: str) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    assert text[start_of_last_lines(file, lines) :] == expected


def test_runtime_removes_what_it_was_told_though_the_agent_has_left_events_unread(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "devcluster.nodeagent.runtime", str(theirs.fileno())]
    with theirs, ours:
        runtime = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        ours.sendall(json.dumps({"op": "remember", "path": str(left)}).encode() + b"\n")
        ours.sendall(json.dumps({"op": "echo", "id": "unread"}).encode() + b"\n")
        select.select([ours], [], [], 30)
    assert runtime.wait(30) == 0
    assert not left.exists()
