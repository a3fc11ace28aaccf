"""Which process is a pod's agent, while it lives and when it is gone."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticjob.agent import pod_lock
from elasticjob.agent.pod_lock import AgentLock, SecondAgent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")

HOLDS = """
import os, sys, time
from elasticjob.agent.pod_lock import AgentLock
held = AgentLock("a", sys.argv[1], "ns/job")
if sys.argv[2] == "forks" and os.fork() == 0:
    time.sleep(60)
print("holds", flush=True)
time.sleep(60)
"""
CLAIMS = """
import sys
from elasticjob.agent.pod_lock import AgentLock
AgentLock("a", sys.argv[1], "ns/job")
"""
Holder = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def uid() -> str:
    return secrets.token_hex(8)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_lock, "OWNER_EXIT_SECONDS", 0.2)


@pytest.fixture
def holder(uid: str) -> Iterator[Holder]:
    """Another process that is the pod's agent."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str = "") -> subprocess.Popen[str]:
        one = subprocess.Popen(
            [sys.executable, "-c", HOLDS, uid, how], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "holds\n"
        return one

    yield start
    for one in started:
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def test_a_second_process_is_told_who_was_first_and_what_to_do(
    uid: str, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_RDZV_BACKEND", "k8s")
    monkeypatch.setenv("PET_NNODES", "1:4")
    first = holder()
    with pytest.raises(SecondAgent) as error:
        AgentLock("a", uid, "ns/job")
    for text in (f"process {first.pid} ", "ns/job", "PET_NNODES, PET_RDZV_BACKEND", "--standalone", "unset"):
        assert text in str(error.value)


def test_one_that_is_stopped_lives(uid: str, holder: Holder) -> None:
    first = holder()
    first.send_signal(signal.SIGSTOP)
    while " T " not in Path(f"/proc/{first.pid}/stat").read_text():
        time.sleep(0.01)
    with pytest.raises(SecondAgent, match="is stopped by a signal"):
        AgentLock("a", uid, "ns/job")


def test_one_that_was_killed_does_not_even_if_its_children_do(
    uid: str, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a zombie whose parent has not yet asked, too. One that comes at once waits for its last moment."""
    monkeypatch.setattr(pod_lock, "OWNER_EXIT_SECONDS", 20.0)
    first = holder("forks")
    os.kill(first.pid, signal.SIGKILL)
    AgentLock("a", uid, "ns/job").release()


def test_handlers_of_one_process_share_it(uid: str) -> None:
    first, second = AgentLock("a", uid, "ns/job"), AgentLock("a", uid, "ns/job")
    first.release()
    first.release()
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            [sys.executable, "-c", CLAIMS, uid],
            check=True,
            capture_output=True,
        )
    second.release()
    subprocess.run([sys.executable, "-c", CLAIMS, uid], check=True, capture_output=True)


def test_other_pods_of_the_machine_are_others(uid: str, holder: Holder) -> None:
    holder()
    AgentLock("a", uid + "x", "ns/job").release()


def test_where_there_are_no_such_sockets_nobody_is_held_up(
    uid: str, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder()
    monkeypatch.setattr(sys, "platform", "darwin")
    AgentLock("a", uid, "ns/job").release()
