"""The preStop hook that keeps a container alive while its round drains: what is run, by real interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from elasticjob.contract.names import (
    DRAIN_HOOK_ANNOTATION,
    HOOK_DRAINING,
    HOOK_FOLDERS,
    HOOK_PREFIX,
    HOOK_READY,
    HOOK_REPLACING,
    HOOK_WORDS,
    REPLACE_SECONDS_ANNOTATION,
)
from elasticjob.drain.pre_stop import PodHook
from elasticjob_operator.act import pre_stop
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.observe.seen_pod import read_pod
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


def started(
    container: dict[str, Any], uid: str, drain: int = 30, replaces: int = 0
) -> subprocess.Popen[bytes]:
    words = pre_stop.command(container, drain, replaces)
    return subprocess.Popen(words, env={**os.environ, "ELASTICJOB_POD_UID": uid}, stderr=subprocess.PIPE)


@both
def test_the_hook_ends_at_once_where_the_script_takes_no_part(container: dict[str, Any], uid: str) -> None:
    hook = started(container, uid, 3600)
    _, said = hook.communicate(timeout=60)
    assert (hook.returncode, said) == (0, b"")


@both
# shows: a pod is deleted, evicted or preempted, and the script calls `should_stop`
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
    """Not the time for the next pod: a job that was deleted has none, and a node that is shut down does not
    wait."""
    monkeypatch.setattr(pre_stop, "ASK_SECONDS", 2)
    PodHook(uid).say(HOOK_READY)
    hook = started(container, uid, 3600, 3600)
    with pytest.raises(subprocess.TimeoutExpired):
        hook.wait(1)
    assert hook.wait(60) == 0


@both
def test_the_hook_waits_while_the_next_pod_starts(
    container: dict[str, Any], uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pre_stop, "ASK_SECONDS", 0)
    told = PodHook(uid)
    told.say(HOOK_READY)
    told.say(HOOK_REPLACING)
    hook = started(container, uid, 3600, 3600)
    with pytest.raises(subprocess.TimeoutExpired):
        hook.wait(2)
    told.take_back(HOOK_REPLACING)
    assert hook.wait(60) == 0, "the job was deleted meanwhile"


@both
def test_the_hook_does_not_outlast_the_time_for_the_next_pod(
    container: dict[str, Any], uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has gone, and takes nothing back: there would be no time left for a drain."""
    monkeypatch.setattr(pre_stop, "ASK_SECONDS", 0)
    PodHook(uid).say(HOOK_REPLACING)
    hook = started(container, uid, 3600, 2)
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
    files = [Path(folder, f"{HOOK_PREFIX}{uid}.{what}") for folder in HOOK_FOLDERS for what in HOOK_WORDS]
    last = PodHook(uid)
    for what in HOOK_WORDS:
        last.say(what)
    assert [file.exists() for file in files] == [True] * 3 + [False] * 3
    again = PodHook(uid)
    assert not any(file.exists() for file in files)
    again.close()
    again.say(HOOK_READY)
    again.say(HOOK_REPLACING)
    assert not any(file.exists() for file in files), "what comes late changes nothing"
    PodHook(uid).say(HOOK_REPLACING)
    again.take_back(HOOK_REPLACING)
    assert [file.exists() for file in files] == [False, True, False] + [False] * 3, "nor in a later round"


def test_the_next_folder_is_used_where_the_first_cannot_be_written(tmp_path: Path) -> None:
    PodHook("u", (str(tmp_path / "missing"), str(tmp_path))).say(HOOK_READY)
    assert [file.name for file in tmp_path.iterdir()] == [f"{HOOK_PREFIX}u.{HOOK_READY}"]


@pytest.mark.parametrize(
    ("given", "drain", "grace", "seconds", "replaces"),
    [
        *((None, 30, 125, 115, 60), (None, 300, 395, 385, 60), (None, 0, 35, 0, 0)),
        *((20, 30, 35, 25, 0), (600, 30, 600, 590, 60), (70, 30, 70, 60, 20)),
    ],
)
def test_the_grace_period_has_room_for_the_next_pod_and_a_drain(
    given: int | None, drain: int, grace: int, seconds: int, replaces: int
) -> None:
    template = simple(**TORCHRUN)
    if given is not None:
        template["spec"]["terminationGracePeriodSeconds"] = given
    pod = pod_of(a_job(template, drain_seconds=drain), 0, 0, IMAGE)
    assert pod["spec"]["terminationGracePeriodSeconds"] == grace
    seen = read_pod(pod).pod
    assert (seen.drain_seconds, seen.replace_seconds) == (seconds, replaces)
    pod["metadata"]["deletionGracePeriodSeconds"] = 12
    seen = read_pod(pod).pod
    assert (seen.drain_seconds, seen.replace_seconds) == (2 if drain else 0, 0), (
        "kubectl delete --grace-period"
    )


@pytest.mark.parametrize("said", ["", "-1", "sixty", "1e3", "999999", "٣"])
def test_what_an_annotation_says_that_is_no_number_of_seconds_is_none(said: str) -> None:
    pod = pod_of(a_job(simple(**TORCHRUN), drain_seconds=30), 0, 0, IMAGE)
    pod["metadata"]["annotations"][REPLACE_SECONDS_ANNOTATION] = said
    assert read_pod(pod).pod.replace_seconds == 0


def test_since_when_a_pod_is_being_deleted_follows_from_the_end_of_its_grace_period() -> None:
    pod = pod_of(a_job(simple(**TORCHRUN), drain_seconds=30), 0, 0, IMAGE)
    assert read_pod(pod).pod.deletion_time is None
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:02:05Z", "deletionGracePeriodSeconds": 125}
    assert read_pod(pod).pod.deletion_time == datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("grace", [10**11, 10**18, 10**400])
def test_a_pod_with_an_endless_grace_period_is_read(grace: int) -> None:
    """The API server takes any; a pod that cannot be read would count as gone after a restart."""
    pod = pod_of(a_job(simple(**TORCHRUN), drain_seconds=30), 0, 0, IMAGE)
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:02:05Z", "deletionGracePeriodSeconds": grace}
    seen = read_pod(pod).pod
    assert seen.deleting
    assert seen.deletion_time is None


# shows: a pod is deleted, evicted or preempted, and its hook cannot run: the image has no ...
def test_a_hook_of_the_templates_own_stays() -> None:
    own = {"preStop": {"exec": {"command": ["sync"]}}}
    pod = pod_of(a_job(simple(lifecycle=own), drain_seconds=30), 0, 0, IMAGE)
    assert pod["spec"]["containers"][0]["lifecycle"] == own
    assert "annotations" not in pod["metadata"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 35
    template = simple(lifecycle=own)
    template["metadata"] = {"annotations": {DRAIN_HOOK_ANNOTATION: "true"}}
    assert (
        pod_of(a_job(template, drain_seconds=30), 0, 0, IMAGE)["spec"]["terminationGracePeriodSeconds"] == 65
    ), "it waits, too"


def test_what_the_template_says_of_the_start_stays() -> None:
    own = {"postStart": {"exec": {"command": ["true"]}}}
    lifecycle = pod_of(a_job(simple(lifecycle=own), drain_seconds=30), 0, 0, IMAGE)["spec"]["containers"][0][
        "lifecycle"
    ]
    assert lifecycle["postStart"] == own["postStart"]
    assert lifecycle["preStop"]["exec"]["command"][:2] == ["sh", "-c"]
