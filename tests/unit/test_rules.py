"""Failure rules over arbitrary failures, and which of several failures is the root."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.rounds.causes import Cause
from elasticjob.rounds.waits import Waits
from elasticjob_operator.plan.charges import charging, failure_rules, revision
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.evidence import ACCOUNTS, CAUSES, SCALING, Evidence
from elasticjob_operator.plan.state.model import (
    Exit,
    Job,
    JobSpec,
    Now,
    Observed,
    Pod,
    Rule,
    RuleAction,
)
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.restart_accounts import Charge
from elasticjob_operator.plan.state.status import JobStatus, RoundEnd, RoundHistory, RoundStatus

WALL = datetime(2026, 1, 1, tzinfo=timezone.utc)
BROKEN = RoundStatus(number=3, phase="Broken", established_time=WALL, end=RoundEnd(WALL))


def a_pass(
    spec: JobSpec | None = None, *, pods: tuple[Pod, ...] = (), after: float = 0.0, number: int = 3
) -> Pass:
    status = JobStatus(current_round=replace(BROKEN, number=number))
    now = Now(WALL + timedelta(seconds=after), after, "nonce")
    job = Job("default", "mnist", "uid", 1, spec or JobSpec(template={}))
    p = Pass(job, status, Observed(pods=pods), now, Waits({}, after), status)
    charging.refresh_accounts(p)
    return p


def worker_failed(pod: str = "mnist-0-0", **fields: object) -> Evidence:
    return replace(Evidence(Cause.WORKER_FAILED, f"a worker of {pod} failed", pod, pod_uid=pod), **fields)  # type: ignore[arg-type]


evidence = st.builds(
    Evidence,
    cause=st.sampled_from(sorted(CAUSES)),
    message=st.text(max_size=300),
    pod_name=st.sampled_from(["mnist-0-0", "mnist-1-0", ""]),
    exit_code=st.none() | st.integers(-64, 255),
    pod_uid=st.just("uid"),
    node_name=st.sampled_from(["a", "b", ""]),
    reasons=st.lists(st.sampled_from(["OOMKilled", "Evicted", "Error"]), max_size=2).map(tuple),
    error_text=st.text(st.characters(), max_size=300),
    milliseconds=st.none() | st.integers(0, 10**6),
).map(lambda e: e if e.cause == Cause.WORKER_FAILED else replace(e, milliseconds=None))
rule = st.one_of(
    st.builds(
        Rule,
        st.just("codes"),
        st.sampled_from([a.value for a in RuleAction]),
        on_worker_exit_codes=st.lists(st.integers(-64, 255), min_size=1).map(tuple),
    ),
    st.builds(
        Rule,
        st.just("words"),
        st.sampled_from([a.value for a in RuleAction]),
        on_pod_reasons=st.lists(st.sampled_from(["OOMKilled", "Evicted"]), min_size=1).map(tuple),
    ),
    st.builds(
        Rule,
        st.just("pattern"),
        st.sampled_from([a.value for a in RuleAction]),
        on_error_pattern=st.text(st.characters(), min_size=1, max_size=40),
    ),
)


@given(st.lists(rule, max_size=6), evidence)
def test_the_first_rule_that_matches_alone_decides(among: list[Rule], evidence: Evidence) -> None:
    """And none raises, whatever stands in a pattern or in a worker's message."""
    alone = [rule for rule in among if failure_rules.first_matching_rule([rule], evidence) is not None]
    assert failure_rules.first_matching_rule(among, evidence) is (alone[0] if alone else None)
    assert not alone or evidence.account != SCALING
    failure_rules.problems(among)


@given(st.lists(evidence, min_size=1, max_size=6), st.lists(rule, max_size=3))
def test_a_failure_is_charged_once_and_says_why(found: list[Evidence], among: list[Rule]) -> None:
    p = a_pass(JobSpec(template={}, rules=tuple(among)))
    charging.record_evidence(p, found)
    for _ in range(2):
        if p.round.next_cause.account:
            charging.charge_round(p)
    charges = [(a.name, c) for a in p.status.accounts for c in a.charges]
    assert len(charges) == p.status.restarts == (1 if p.round.next_cause.account else 0)
    for account, charge in charges:
        assert account in ACCOUNTS
        assert (charge.cause, charge.round) == (p.round.next_cause.cause, 3)
        assert len(charge.message) <= charging.MAX_MESSAGE
    assert status_json.parse(status_json.dump(p.status)) == p.status


@given(
    st.lists(evidence, min_size=1, max_size=4, unique_by=lambda e: (e.cause, e.milliseconds)).filter(
        lambda found: Cause.HANG not in {e.cause for e in found}
    )
)
def test_the_root_does_not_depend_on_the_order_in_which_evidence_comes(found: list[Evidence]) -> None:
    """But for a hang, which a worker's failure precedes only if a rule matches it."""
    roots = set()
    for order in itertools.permutations(found):
        p = a_pass()
        charging.record_evidence(p, list(order))
        roots.add((p.round.next_cause.cause, p.round.failure_offset_milliseconds))
    assert len(roots) == 1


def test_a_worker_failure_that_a_rule_matches_comes_before_a_hang() -> None:
    hang = Evidence(Cause.HANG, "no step for 600 s")
    ecc = worker_failed(error_text="ECC", exit_code=1)
    spec = JobSpec(template={}, rules=(Rule("gpu", "ExcludeNode", on_error_pattern="ECC"),))
    for order in ([hang, ecc], [ecc, hang]):
        with_rule, without = a_pass(spec), a_pass()
        charging.record_evidence(with_rule, order)
        charging.record_evidence(without, order)
        first, second = with_rule.round.next_cause, without.round.next_cause
        assert (first.cause, first.rule_name) == (Cause.WORKER_FAILED, "gpu")
        assert (second.cause, second.rule_name) == (Cause.HANG, "")


@pytest.mark.parametrize(
    ("evidence", "code", "matches"),
    [
        (worker_failed(exit_code=-9), -9, True),
        (worker_failed(exit_code=-9), 137, False),
        (worker_failed(exit_code=None), 1, False),
        (Evidence("PodFailed", "it ended", exit_code=42), 42, True),
        (Evidence("PodLost", "it was killed", exit_code=137), 137, True),
        (Evidence("Preempted", "it was preempted", exit_code=143), 143, False),
    ],
)
def test_exit_codes_are_those_of_what_ended_by_itself(evidence: Evidence, code: int, matches: bool) -> None:
    found = failure_rules.first_matching_rule([Rule("it", "FailJob", on_worker_exit_codes=(code,))], evidence)
    assert (found is not None) == matches


def test_a_pattern_that_is_none_is_named_with_what_is_wrong() -> None:
    good = Rule("good", "FailJob", on_error_pattern="E.*C")
    bad = Rule("bad", "FailJob", on_error_pattern="(")
    assert failure_rules.problems([good]) == ()
    assert failure_rules.problems([good, bad]) == (
        "failurePolicy.rules: onErrorPattern of rule bad is not a valid RE2 regular expression and matches "
        "nothing: missing ): (",
    )


def test_half_a_character_in_a_message_is_no_obstacle() -> None:
    evidence = worker_failed(error_text="\ud800 ECC")
    assert (
        failure_rules.first_matching_rule([Rule("gpu", "FailJob", on_error_pattern="ECC$")], evidence)
        is not None
    )


@given(
    st.sampled_from(sorted(CAUSES)),
    st.sampled_from(["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", ""]),
    st.sampled_from(["OOMKilled", "Error", ""]),
    st.booleans(),
    st.floats(0, 400),
    st.booleans(),
)
def test_a_charge_that_moves_stays_one(
    cause: str, disruption: str, reason: str, ready: bool, after: float, again: bool
) -> None:
    """Whatever the pod shows afterwards, and however often one looks: one charge, one restart, and history,
    last failure and charge say the same."""
    pod = Pod(
        "mnist-0-0",
        "pod-uid",
        node="a",
        node_ready=ready,
        exit=Exit(137, reason) if reason else None,
        deleting=True,
        disruption=disruption,
    )
    p = a_pass(pods=(pod,), after=after)
    before = replace(p.now, wall=WALL)
    p.now, now = before, p.now
    charging.record_evidence(p, [Evidence(cause, "it ended", pod.name, 0, pod_uid=pod.uid, node_name="a")])
    charging.charge_round(p)
    charged = _charge_of(p)
    end = p.round.next_cause
    p.set(
        current_round=RoundStatus(
            number=4, phase="Active", cause=cause, account=end.account, message="it ended; b took over"
        ),
        round_history=(RoundHistory(4, cause, 1, WALL), RoundHistory(3, "Started", 1, WALL, end)),
    )
    p.now = now
    for _ in range(2 if again else 1):
        revision.revise(p)
    moved = _charge_of(p)
    assert p.status.restarts == 1
    assert (moved.round, moved.time) == (charged.round, charged.time)
    assert p.status.round_history[0].cause == p.round.cause == moved.cause
    over = p.status.round_history[1].end
    assert over is not None
    assert p.round.message == f"{over.message}; b took over"
    assert over.account == p.round.account == next(a.name for a in p.status.accounts if a.charges)
    if moved.cause != cause:
        assert after <= revision.REVISION_WINDOW_SECONDS
        assert p.status.last_failure is not None
        assert over.message == p.status.last_failure.message
        assert [e.reason for e in p.events].count("ChargeRevised") >= 1


def _charge_of(p: Pass) -> Charge:
    (charge,) = (c for a in p.status.accounts for c in a.charges)
    return charge


@pytest.mark.parametrize(
    ("template", "command"),
    [
        (None, "kubectl -n default logs mnist-0-0"),
        (
            {"spec": {"containers": [{"name": "train"}, {"name": "side"}]}},
            "kubectl -n default logs mnist-0-0 -c train",
        ),
        (
            {
                "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "side"}},
                "spec": {"containers": [{"name": "train"}, {"name": "side"}]},
            },
            "kubectl -n default logs mnist-0-0 -c side",
        ),
    ],
)
def test_the_last_failure_says_how_to_read_on(template: dict[str, object] | None, command: str) -> None:
    p = a_pass(JobSpec(template=template))
    charging.record_evidence(p, [worker_failed()])
    assert p.status.last_failure is not None
    assert p.status.last_failure.logs_command == command


def test_a_hang_is_everybodys_log() -> None:
    p = a_pass(JobSpec(template={"spec": {"containers": [{"name": "train"}]}}))
    charging.record_evidence(p, [Evidence(Cause.HANG, "no step for 600 s")])
    assert p.status.last_failure is not None
    assert p.status.last_failure.logs_command == (
        "kubectl -n default logs -l elasticjob.dev/job-name=mnist -c train --prefix --tail=200"
    )
