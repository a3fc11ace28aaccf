"""Whatever pods write into their Leases, and whatever stands in the pods: the planner decides.

What is promised is in docs/internals/hostile-input.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticjob.contract.fields import RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.names import PARTICIPANT_ANNOTATION, members_lease, pod_name, round_lease
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import (
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MAX_ROUND_BYTES, MemberList, RoundRecord
from elasticjob.contract.text import one_line
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import (
    Event,
    Job,
    JobSpec,
    Limit,
    Now,
    Observed,
    Participant,
    Plan,
    Pod,
    Rule,
    RuleAction,
)
from elasticjob_operator.plan.state.status import JobStatus
from tests.unit import hostile

WALL = datetime(2026, 1, 1, tzinfo=timezone.utc)
IDS = ["id-0", "id-1", "id-2"]
NAMES = ["mnist-0-0", "mnist-1-0", "mnist-1-1", "mnist-round", "zz"]
PARSERS: list[Callable[[str], Any]] = [
    RoundRecord.parse,
    ParticipantRecord.parse,
    FailureReport.parse,
    RoundReport.parse,
    ProgressReport.parse,
    StartsReport.parse,
    ResumedReport.parse,
    MemberList.parse,
]
MAX_STATUS_BYTES = 60_000
"""Of a job of two replicas with the worst messages from all; each member adds 1 KB at most."""
SEVERAL = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
WORLDS = settings(SEVERAL, max_examples=40)


def specs() -> Iterator[JobSpec]:
    rules = (
        Rule("bad", RuleAction.EXCLUDE_NODE.value, on_error_pattern="worker.*(a+)+$"),
        Rule("code", RuleAction.IGNORE.value, on_worker_exit_codes=(1,)),
    )
    template = {"spec": {"containers": [{"name": "train"}]}}
    yield JobSpec(
        2, 1, template=template, application=Limit(3, 2**31 - 1), rules=rules, limits=Limits(hang_timeout=1)
    )
    yield JobSpec(2, 1, template=None, max_rounds_without_progress=1)


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from strings(inner)


def integers(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from integers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from integers(inner)


def check(decided: Plan) -> None:
    """What every plan keeps to, whatever pods say."""
    dump = status_json.dump(decided.status)
    text = json.dumps(dump, ensure_ascii=False)
    assert len(text.encode()) < MAX_STATUS_BYTES
    for found in strings(dump):
        assert len(found) <= 4_200
        assert found.isprintable(), found
    assert all(-(2**63) <= found < 2**63 for found in integers(dump))
    for counted in (*integers(dump["participants"]), *integers(dump.get("lastFailure", {}))):
        assert -(2**31) <= counted < 2**31, "the schema's int32"
    assert status_json.parse(json.loads(text)) == decided.status, "the next operator reads it"
    assert RoundRecord.parse(decided.record.dump()) == decided.record, "every participant reads it"
    assert len(decided.record.dump().encode()) <= MAX_ROUND_BYTES
    for event in decided.events:
        assert event.message.isprintable(), event


def observed(job: Job, pods: Iterable[hostile.Json], leases: Iterable[hostile.Json]) -> Observed:
    """As ``ClusterCache.observe`` joins them."""
    seen = {p.name: p for p in map(read_pod, pods)}
    slim = {lease.name: lease for lease in map(read_lease, leases)}
    templated = job.spec.template is not None
    return Observed(
        pods=tuple(
            replace(seen[name].pod, of_this_job=not templated or seen[name].owner == job.uid)
            for name in sorted(seen)
        ),
        leases={name: lease.participant for name, lease in slim.items() if name != round_lease(job.name)},
        record=slim[round_lease(job.name)].record if round_lease(job.name) in slim else None,
        nodes=frozenset({"a", "b"}),
    )


@given(st.sampled_from(PARSERS), st.data())
@SEVERAL
def test_any_record_is_read_or_refused_with_a_printable_sentence(
    parse: Callable[[str], Any], data: st.DataObject
) -> None:
    good = data.draw(st.sampled_from(sorted(hostile.vectors(IDS, "n").values())))
    problem = ""
    try:
        parse(data.draw(hostile.record(good)))
    except RecordError as error:
        problem = str(error)
    assert problem.isprintable()
    assert len(problem) < 400


@pytest.mark.parametrize("depth", range(880, 1001, 3))
def test_a_value_nested_as_deeply_as_can_be_read_is_refused(depth: int) -> None:
    with pytest.raises(RecordError):
        ParticipantRecord.parse('{"version":' + "[" * depth + "]" * depth + "}")


@given(st.data())
@WORLDS
def test_the_planner_decides_whatever_pods_and_leases_say(data: st.DataObject) -> None:
    """Three passes, each on what the one before has written, in another world."""
    spec = data.draw(st.sampled_from(list(specs())))
    job = Job("default", "mnist", "uid", 1, spec)
    status = JobStatus()
    timers: dict[WaitKey, float] = {}
    for number in range(3):
        pods = data.draw(st.lists(hostile.pod("mnist", NAMES, "uid"), max_size=5))
        leases = data.draw(st.lists(hostile.lease("mnist", NAMES, IDS), max_size=5))
        now = Now(WALL + timedelta(seconds=400 * number), 400.0 * number, f"n{number}")
        decided = plan(job, status, observed(job, pods, leases), now, timers)
        check(decided)
        status, timers = decided.status, dict(decided.timers)


def a_world(*leases: Participant, count: int = 3, **pod: Any) -> Observed:
    pods = tuple(
        Pod(pod_name("mnist", i, 0), f"uid-{i}", slot=i, node="a", ip="10.0.0.1", running=True, **pod)
        for i in range(count)
    )
    return Observed(pods=pods, leases={lease.pod: lease for lease in leases}, nodes=frozenset("a"))


def joined(slot: int, record_id: str = "", **fields: Any) -> Participant:
    record = ParticipantRecord(record_id or f"id-{slot}", "Joining", "10.0.0.1:80", **fields)
    return Participant(pod_name("mnist", slot, 0), f"uid-{slot}", record)


JOB = Job("default", "mnist", "uid", 1, JobSpec(3, 1, template={}))


def passes(world: Observed, status: JobStatus | None = None, seconds: Iterable[float] = (0, 301)) -> Plan:
    """Passes over the same world, so that whatever is waited for is over."""
    decided: Plan | None = None
    events: list[Event] = []
    for second in seconds:
        before = decided.status if decided is not None else (status or JobStatus(attempts=(0, 0, 0)))
        timers = decided.timers if decided is not None else {}
        decided = plan(
            JOB, before, world, Now(WALL + timedelta(seconds=second), second, f"n{second}"), timers
        )
        check(decided)
        events.extend(decided.events)
    assert decided is not None
    return replace(decided, events=tuple(events))


@given(hostile.lease_annotations(["id-9"]))
@SEVERAL
def test_the_other_pods_form_a_round_without_the_one_that_writes_garbage(garbage: dict[str, str]) -> None:
    bad = read_lease(
        {
            "metadata": {"name": "mnist-0-0", "namespace": "default", "annotations": garbage},
            "spec": {"holderIdentity": "uid-0"},
        }
    ).participant
    decided = passes(a_world(bad, joined(1), joined(2)))
    members = [m.pod_name for m in decided.status.members()]
    assert {"mnist-1-0", "mnist-2-0"} <= set(members)
    assert ("mnist-0-0" in members) == (bad.record is not None and bad.record.state == "Joining")
    names = [entry.pod_name for entry in decided.status.ignored_pods]
    unusable = bool(bad.problem) or (bad.record is not None and bad.record.state == "Napping")
    assert names == (["mnist-0-0"] if unusable else [])
    told = [event.message for event in decided.events if event.reason == "PodIgnored"]
    assert len(told) == len(names), "once"


def test_of_two_with_one_id_one_is_a_member_and_the_other_is_named() -> None:
    decided = passes(a_world(joined(0, "twin"), joined(1, "twin"), joined(2)))
    assert [m.pod_name for m in decided.status.members()] == ["mnist-0-0", "mnist-2-0"]
    (ignored,) = decided.status.ignored_pods
    assert ignored.pod_name == "mnist-1-0"
    assert ignored.message == "participant record: the id twin is already used by mnist-0-0"
    waiting = passes(a_world(joined(0, "twin"), joined(1, "twin")), seconds=(0,)).status.condition("Training")
    assert waiting is not None
    assert waiting.message.endswith(f"; mnist-1-0 is ignored: {ignored.message}")


def test_a_pod_with_another_jobs_label_is_named() -> None:
    world = a_world(joined(0), joined(1), joined(2))
    strangers = tuple(replace(pod, of_this_job=pod.slot != 2) for pod in world.pods)
    decided = passes(replace(world, pods=strangers))
    assert [m.pod_name for m in decided.status.members()] == ["mnist-0-0", "mnist-1-0"]
    assert [entry.pod_name for entry in decided.status.ignored_pods] == ["mnist-2-0"]
    assert (
        "left behind by a job of this name (kubectl delete --cascade=orphan), or taken from it"
        in decided.status.ignored_pods[0].message
    )


def test_a_thousand_that_are_ignored_stand_there_as_twenty() -> None:
    bad = [replace(joined(i), record=None, problem=hostile.ESCAPES * 20) for i in range(1000)]
    decided = passes(a_world(*bad, count=1000))
    assert len(decided.status.ignored_pods) == 20
    assert "and 980 more pods" in decided.status.ignored_pods[-1].message
    assert sum(event.reason == "PodIgnored" for event in decided.events) == 20
    bad = [replace(lease, problem="bad") for lease in bad]
    world, status, timers = a_world(*bad, count=1000), JobStatus(attempts=(0, 0, 0)), dict[WaitKey, float]()
    seen = set()
    for second in range(0, 30, 3):
        decided = plan(JOB, status, world, Now(WALL + timedelta(seconds=second), second, "n"), timers)
        status, timers = decided.status, dict(decided.timers)
        seen.add(status.ignored_pods[-1].message)
    assert seen == {"(and 980 more pods) bad"}, "nothing is new"


def test_garbage_that_changes_all_the_time_is_written_rarely() -> None:
    """Neither the status nor the Events follow each new garbage."""
    status, timers = JobStatus(attempts=(0, 0, 0)), dict[WaitKey, float]()
    statuses, told = set(), 0
    for tenth in range(300):
        world = a_world(replace(joined(0), record=None, problem=f"garbage {tenth}"), joined(1), joined(2))
        now = Now(WALL + timedelta(seconds=tenth / 10), tenth / 10, "nonce")
        decided = plan(JOB, status, world, now, timers)
        status, timers = decided.status, dict(decided.timers)
        statuses.add(status.ignored_pods)
        told += sum(event.reason == "PodIgnored" for event in decided.events)
    assert told == 1
    assert 2 <= len(statuses) <= 5, "in 30 seconds"


def test_a_step_report_from_beyond_all_time_is_refused_or_bounded() -> None:
    formed = passes(a_world(joined(0), joined(1), joined(2)))
    leader = replace(joined(0), report=RoundReport(formed.status.current_round.nonce, established=True))
    most = ProgressReport(formed.status.current_round.nonce, 2**53 - 2, 2**53 - 1, 10**11, 3 * 10**11)
    world = a_world(replace(leader, progress=most), joined(1), joined(2))
    trained = passes(world, formed.status, seconds=(400, 401, 500))
    assert trained.status.progress is not None
    assert trained.status.progress.counted_time is not None
    assert trained.status.progress.counted_time <= WALL + timedelta(seconds=500)
    broken = replace(world, leases={**world.leases, "mnist-1-0": joined(1, "anew")})
    check(plan(JOB, trained.status, broken, Now(WALL + timedelta(seconds=600), 600, "x"), {}))
    with pytest.raises(RecordError, match="trainingMilliseconds"):
        ProgressReport.parse(replace(most, training_milliseconds=2**53 - 1).dump())


def test_a_leader_that_misses_somebody_who_does_not_exist_is_given_up_in_time() -> None:
    formed = passes(a_world(joined(0), joined(1), joined(2)))
    leader = replace(joined(0), report=RoundReport(formed.status.current_round.nonce, unarrived_ranks=(77,)))
    world = replace(a_world(leader, joined(1), joined(2)), record=formed.record)
    assert (
        passes(world, formed.status, seconds=(400, 431)).status.current_round.next_cause.cause
        == "LeaderUnreachable"
    )


@pytest.mark.parametrize("size", ["8", "9" * 3000, -1, 0, 100_000, True, 8.5, [8], {}])
def test_a_number_of_workers_that_is_none_is_not_known(size: object) -> None:
    fields = json.loads(ParticipantRecord("id-0", "Joining", "h:1").dump())
    record = ParticipantRecord.parse(json.dumps({**fields, "localWorldSize": size}))
    assert record.local_world_size is None
    check(passes(a_world(replace(joined(0), record=record), joined(1), joined(2)), seconds=(0,)))


def test_a_workers_message_is_one_line_for_people_and_as_it_was_for_rules() -> None:
    formed = passes(a_world(joined(0), joined(1), joined(2)))
    lease = replace(
        joined(1, "anew", from_job_uid="uid", from_round=1),
        failure=FailureReport(1, 1, "first\x1b[31m\nERROR second\r\n" + "x" * 2000, 1),
    )
    job = replace(
        JOB,
        spec=replace(JOB.spec, rules=(Rule("r", RuleAction.FAIL_JOB.value, on_error_pattern="(?m)^ERROR"),)),
    )
    world = a_world(joined(0), lease, joined(2))
    decided = plan(job, formed.status, world, Now(WALL + timedelta(seconds=400), 400, "x"), {})
    check(decided)
    assert decided.status.last_failure is not None
    assert "failed: first [31m ERROR second xxx" in decided.status.last_failure.message
    assert decided.status.current_round.next_cause.rule_name == "r", "the pattern looks at lines"


def test_a_participant_of_one_job_changes_no_plan_of_another() -> None:
    """Labels decide whose a Lease is, and names whose a pod is: a Lease that claims another's job is none of
    its participants, and its round Lease is never taken from a pod."""
    world = a_world(joined(0), joined(1), joined(2))
    claims = Participant("other-0-0", "uid-x", ParticipantRecord("id-0", "Joining", "6.6.6.6:1"))
    forged = Participant("mnist-1-0", "uid-x", ParticipantRecord("evil", "Leaving", ""))
    alone, beside = passes(world), passes(replace(world, leases={**world.leases, "other-0-0": claims}))
    assert beside.status == alone.status
    assert beside.record == alone.record
    robbed = passes(replace(world, leases={**world.leases, "mnist-1-0": forged}))
    assert "evil" not in robbed.record.dump(), "the holder is another pod"


def test_names_of_two_jobs_never_collide() -> None:
    jobs = [f"a{tail}" for tail in ("", "-1", "-0", "-1-0", "-0-0", "-round", "-1-1-1", "-elasticjob")]
    owners: dict[str, tuple[str, int, int]] = {}
    leases = {name(job) for job in jobs for name in (round_lease, members_lease)}
    for job in jobs:
        for slot in range(3):
            for attempt in range(3):
                key = (job, slot, attempt)
                assert owners.setdefault(pod_name(*key), key) == key
    assert not leases & set(owners)


@pytest.mark.parametrize("size", [500, 4000])
def test_work_grows_no_faster_than_the_job(size: int) -> None:
    """Counted in comparisons of ids: the leader may name 4,000 ranks that do not exist."""
    formed_ids = [Counted(f"id-{i:07d}") for i in range(size)]
    Counted.compared = 0
    unknown = tuple(range(size, size + 4000))
    job = replace(JOB, spec=JobSpec(size, 1, template={}))
    world = a_world(*(joined(i, formed_ids[i]) for i in range(size)), count=size)
    status = JobStatus(attempts=(0,) * size)
    formed = plan(job, status, world, Now(WALL, 0, "n"), {})
    assert len(formed.status.members()) == size
    said = RoundReport("n", unarrived_ranks=unknown, silent_ranks=unknown)
    leases = {**world.leases, "mnist-0-0": replace(joined(0, formed_ids[0]), report=said)}
    Counted.compared = 0
    plan(job, formed.status, replace(world, leases=leases), Now(WALL, 1, "m"), formed.timers)
    assert Counted.compared < 60 * size


class Counted(str):
    """An id that counts how often it is compared with another."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


@given(st.text(st.characters(), max_size=200), st.integers(1, 100))
def test_one_line_is_printable_bounded_and_changes_nothing_else(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) <= limit
    if text.isprintable() and len(text) <= limit:
        assert line == text


def test_a_lease_of_256_kib_is_kept_as_a_digest_and_garbage_after_garbage_is_no_news() -> None:
    def read(text: str, old: SeenLease | None = None) -> SeenLease:
        meta = {"name": "x", "annotations": {PARTICIPANT_ANNOTATION: text}}
        return read_lease({"metadata": meta, "spec": {}}, old)

    first, second = read("x" * 262_144), read("{" * 262_144)
    assert len(str(first.texts)) < 200
    assert first.texts != second.texts
    third = read('{"id": 5}')
    assert third.participant.problem != first.participant.problem
    assert first == second == third
    good = read(ParticipantRecord("id-0", "Joining", "h:1").dump())
    assert good != first
    assert good != read(ParticipantRecord("id-1", "Joining", "h:1").dump())


@pytest.mark.parametrize(
    "change", [{"exitCode": 2**31}, {"groupRank": 2**31}, {"localRank": 2**31}, {"exitCode": -(2**40)}]
)
def test_what_the_schema_cannot_hold_is_refused(change: dict[str, int]) -> None:
    """The API server would refuse the whole status."""
    with pytest.raises(RecordError, match=str(next(iter(change.values())))):
        FailureReport.parse(json.dumps({**json.loads(FailureReport(1, 0).dump()), **change}))
