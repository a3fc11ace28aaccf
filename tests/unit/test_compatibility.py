"""What a release has written is read by all later ones; operator and handler may differ by a version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Enter, Participant
from elasticjob_operator.observe.spec import MalformedJob, read_job
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Job, JobSpec, Now, Observed
from elasticjob_operator.plan.state.status_json import VERSION
from tests.full_status import WALL
from tests.golden import PARSE, RECORDS, STATUSES, files
from tests.scenarios.world import World

RECORD_FILES = sorted(RECORDS.parent.glob("v*/*.json"))
STATUS_FILES = sorted(STATUSES.parent.glob("v*/*.json"))
SPEC = JobSpec(replicas=2, template={"spec": {"containers": [{"name": "train", "image": "train"}]}})


def lost(written: object, golden: object, path: str = "") -> list[str]:
    """What the golden file says and what is written from it does not."""
    pairs: list[tuple[str, object, object]] = []
    if isinstance(golden, dict) and isinstance(written, dict):
        pairs = [(f"{path}.{name}", written.get(name, "nothing"), field) for name, field in golden.items()]
    elif isinstance(golden, list) and isinstance(written, list) and len(golden) == len(written):
        pairs = [(f"{path}[]", *pair) for pair in zip(written, golden, strict=True)]
    if pairs:
        return [text for name, now, then in pairs for text in lost(now, then, name)]
    return [] if written == golden else [f"{path}: {golden!r} became {written!r}"]


def paths(value: object, path: str = "") -> set[str]:
    """The fields in a piece of JSON."""
    if isinstance(value, dict):
        return {f"{path}.{name}" for name in value}.union(
            *(paths(field, f"{path}.{name}") for name, field in value.items())
        )
    return set().union(*(paths(item, f"{path}[]") for item in value)) if isinstance(value, list) else set()


def by_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", RECORD_FILES, ids=by_name)
def test_a_record_is_read_and_none_of_its_fields_is_lost_or_renamed(path: Path) -> None:
    record = PARSE[path.stem.partition("-")[0]](path.read_text())
    assert lost(json.loads(record.dump()), json.loads(path.read_text())) == []


@pytest.mark.parametrize("path", STATUS_FILES, ids=by_name)
def test_a_status_is_read_and_none_of_its_fields_is_lost_or_renamed(path: Path) -> None:
    golden = json.loads(path.read_text())
    assert lost(status_json.dump(status_json.parse(golden)), golden) == []


@pytest.mark.parametrize("path", STATUS_FILES, ids=by_name)
def test_an_operator_goes_on_from_a_status(path: Path) -> None:
    before = status_json.parse(json.loads(path.read_text()))
    after = plan(Job("ns", "mnist", "uid-job", 3, SPEC), before, Observed(), Now(WALL, 0.0, "n"), {}).status
    assert after.current_round.number >= before.current_round.number
    assert after.restarts >= before.restarts
    assert after.finished == before.finished or not before.finished
    assert len(after.attempts) >= len(before.attempts)


@pytest.mark.parametrize("path", files(), ids=by_name)
def test_every_field_that_is_written_today_is_in_a_golden_file(path: Path) -> None:
    kind = path.stem.partition("-")[0] if path.parent.parent == RECORDS.parent else ""
    known: set[str] = set()
    for golden in RECORD_FILES if kind else STATUS_FILES:
        if golden.stem.partition("-")[0] == kind or not kind:
            known |= paths(json.loads(golden.read_text()))
    assert paths(json.loads(files()[path])) <= known, "run: python -m tests.golden"


# -- a version of difference ---------------------------------------------------------------------------------


def newer(text: str, **changes: Any) -> str:
    """The record as a newer release writes it: with fields that this one does not know."""
    return json.dumps({**json.loads(text), "version": 2, "new": {"field": [1]}, **changes})


@pytest.mark.parametrize("path", RECORD_FILES, ids=by_name)
def test_what_a_newer_release_adds_to_a_record_is_ignored(path: Path) -> None:
    parse = PARSE[path.stem.partition("-")[0]]
    now, then = json.loads(parse(path.read_text()).dump()), json.loads(parse(newer(path.read_text())).dump())
    assert {**now, "version": 2} == then


def member() -> Participant:
    """A participant that trains in round 7."""
    core = Participant("uid")
    core.observe(RoundRecord("uid", 6, "Broken", "9f3b"))
    core.announce("k3x9q2aaaaa", "10.0.3.7:41234", False, 1)
    core.observe(RoundRecord("uid", 7, "Active", "9f3c", ("k3x9q2aaaaa", "b" * 11), "10.0.3.7:41234"))
    assert isinstance(core.take_action(), Enter)
    return core


def test_a_phase_of_a_newer_operator_changes_nothing_for_an_older_handler() -> None:
    core = member()
    running = core.latest
    assert running is not None
    core.observe(RoundRecord.parse(newer(running.dump(), phase="Paused")))
    assert not core.end_reason()
    core.observe(RoundRecord.parse(newer(running.dump(), phase="Broken", cause="NewCause")))
    assert core.end_reason()


def test_limits_that_an_older_operator_does_not_send_are_the_defaults() -> None:
    record = json.loads(RoundRecord("uid", 0, "Broken").dump())
    del record["limits"]["stallTimeoutSeconds"]
    assert RoundRecord.parse(json.dumps(record)).limits == Limits()
    record["limits"]["newTimeoutSeconds"] = 3
    assert RoundRecord.parse(json.dumps(record)).limits == Limits()


def test_an_operator_ignores_a_state_that_a_newer_handler_says() -> None:
    w = World().play("job replicas=2 min=1", "start mnist-0-0")
    w.do("join mnist-1-0")
    lease = w.leases["mnist-1-0"]
    assert lease.record is not None
    record = ParticipantRecord.parse(newer(lease.record.dump(), state="Draining"))
    w.leases["mnist-1-0"] = replace(lease, record=record)
    w.make_passes()
    assert "mnist-1-0" not in {m.pod_name for m in w.status.members()}


def test_a_status_that_only_newer_operators_may_act_on_is_left_alone() -> None:
    status = json.loads((STATUSES / "running.json").read_text())
    raw = {
        "metadata": {"namespace": "a", "name": "j", "uid": "u", "generation": 3, "resourceVersion": "1"},
        "spec": {"replicas": 2},
    }
    status["internal"] |= {"version": VERSION + 1, "new": [{"field": 1}]}
    assert read_job({**raw, "status": status}).status.current_round.number == 1
    status["internal"]["minReaderVersion"] = VERSION + 1
    with pytest.raises(MalformedJob) as told:
        read_job({**raw, "status": status})
    assert told.value.event == "StatusTooNew"
