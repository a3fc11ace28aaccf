"""The preStop hook that keeps a container alive while its round drains: what is run, by real interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob.contract.names import (
    DRAIN_HOOK_ANNOTATION,
    HOOK_DRAINING,
    HOOK_FOLDERS,
    HOOK_PREFIX,
    HOOK_READY,
)
from elasticjob.pod_hook import PodHook
from elasticjob_operator.act import pre_stop
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.observe.objects import read_pod
from tests.unit.test_template import IMAGE, a_job, simple

PYTHON = {"command": [sys.executable, "-m", "torch.distributed.run"]}
TORCHRUN = {"command": ["torchrun", "train.py"]}
both = pytest.mark.parametrize("container", [TORCHRUN, PYTHON], ids=["sh", "python"])


@pytest.fixture
def uid() -> Iterator[str]:
    """A pod's UID, whose files are removed."""
    name = f"test-{uuid.uuid4()}"
    yield name
    PodHook(name)


def started(container: dict[str, Any], uid: str, drain: int = 30) -> subprocess.Popen[bytes]:
    words = pre_stop.command(container, drain)
    return subprocess.Popen(words, env={**os.environ, "ELASTICJOB_POD_UID": uid}, stderr=subprocess.PIPE)


@both
def test_the_hook_ends_at_once_where_the_script_takes_no_part(container: dict[str, Any], uid: str) -> None:
    hook = started(container, uid, 3600)
    _, said = hook.communicate(timeout=60)
    assert (hook.returncode, said) == (0, b"")


@both
def test_the_hook_waits_until_the_round_is_over(container: dict[str, Any], uid: str) -> None:
    told = PodHook(uid)
    told.say(HOOK_READY)
    told.say(HOOK_DRAINING)
    hook = started(container, uid)
    with pytest.raises(subprocess.TimeoutExpired):
        hook.wait(2)
    told.close()
    assert hook.wait(60) == 0


@both
def test_the_hook_gives_the_operator_time_to_begin_a_drain(
    container: dict[str, Any], uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pre_stop, "ASK_SECONDS", 2)
    PodHook(uid).say(HOOK_READY)
    hook = started(container, uid, 3600)
    with pytest.raises(subprocess.TimeoutExpired):
        hook.wait(1)
    assert hook.wait(60) == 0


@both
def test_the_hook_does_not_outlast_the_drain(
    container: dict[str, Any], uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent was killed and could not say that the round is over."""
    monkeypatch.setattr(pre_stop, "ASK_SECONDS", 1)
    PodHook(uid).say(HOOK_DRAINING)
    assert started(container, uid, 1).wait(60) == 0


def test_a_torchrun_that_is_started_again_takes_back_what_the_last_one_said(uid: str) -> None:
    files = [Path(folder, f"{HOOK_PREFIX}{uid}.{HOOK_READY}") for folder in HOOK_FOLDERS]
    PodHook(uid).say(HOOK_READY)
    assert [file.exists() for file in files] == [True, False]
    again = PodHook(uid)
    assert not any(file.exists() for file in files)
    again.close()
    again.say(HOOK_READY)
    assert not any(file.exists() for file in files), "what comes late changes nothing"


def test_the_next_folder_is_used_where_the_first_cannot_be_written(tmp_path: Path) -> None:
    PodHook("u", (str(tmp_path / "missing"), str(tmp_path))).say(HOOK_READY)
    assert [file.name for file in tmp_path.iterdir()] == [f"{HOOK_PREFIX}u.{HOOK_READY}"]


@pytest.mark.parametrize(
    ("given", "drain", "grace", "seconds"),
    [(None, 30, 65, 55), (None, 300, 335, 325), (20, 30, 35, 25), (600, 30, 600, 590), (None, 0, 35, 0)],
)
def test_the_grace_period_has_room_for_a_drain(
    given: int | None, drain: int, grace: int, seconds: int
) -> None:
    template = simple(**TORCHRUN)
    if given is not None:
        template["spec"]["terminationGracePeriodSeconds"] = given
    pod = pod_of(a_job(template, drain=drain), 0, 0, IMAGE)
    assert pod["spec"]["terminationGracePeriodSeconds"] == grace
    assert read_pod(pod).pod.drain_seconds == seconds
    pod["metadata"]["deletionGracePeriodSeconds"] = 12
    assert read_pod(pod).pod.drain_seconds == (2 if drain else 0), "kubectl delete --grace-period"


def test_a_hook_of_the_templates_own_stays() -> None:
    own = {"preStop": {"exec": {"command": ["sync"]}}}
    pod = pod_of(a_job(simple(lifecycle=own), drain=30), 0, 0, IMAGE)
    assert pod["spec"]["containers"][0]["lifecycle"] == own
    assert "annotations" not in pod["metadata"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 35
    template = simple(lifecycle=own)
    template["metadata"] = {"annotations": {DRAIN_HOOK_ANNOTATION: "true"}}
    assert pod_of(a_job(template, drain=30), 0, 0, IMAGE)["spec"]["terminationGracePeriodSeconds"] == 65, (
        "it waits, too"
    )


def test_what_the_template_says_of_the_start_stays() -> None:
    own = {"postStart": {"exec": {"command": ["true"]}}}
    lifecycle = pod_of(a_job(simple(lifecycle=own), drain=30), 0, 0, IMAGE)["spec"]["containers"][0][
        "lifecycle"
    ]
    assert lifecycle["postStart"] == own["postStart"]
    assert lifecycle["preStop"]["exec"]["command"][:2] == ["sh", "-c"]
