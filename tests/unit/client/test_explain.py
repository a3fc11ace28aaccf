"""What ``status``, ``why`` and ``list`` say of jobs in one state or another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticjob.contract.text import node_words
from elasticjob_client.explain import listing
from elasticjob_client.explain.report import report
from elasticjob_client.explain.status import NO_STATUS, next_steps, status
from elasticjob_client.explain.times import duration, milliseconds
from elasticjob_client.explain.why import ended_round, exit_code, pod_to_read, why
from elasticjob_client.resource import ElasticJob
from tests.unit.client.made import LOST, NOW, after_a_loss, ago, conditions, job, pod

PODS = [pod("mnist-0-0"), pod("mnist-1-0", "Failed"), pod("mnist-1-1")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (192, "3m12s"),
        (3599, "59m"),
        (7500, "2h5m"),
        (86400 * 2.5, "2d12h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_milliseconds() -> None:
    assert [milliseconds(v) for v in (None, 85, 4100, 192_000)] == ["-", "85 ms", "4.1 s", "3m12s"]


def test_status_of_a_job_that_trains() -> None:
    found = status(after_a_loss(), PODS, NOW)
    assert (found.state, found.restarts, found.age_seconds, found.active_seconds) == (
        "Training",
        1,
        2520,
        2500,
    )
    assert [(row.rank, row.pod, row.node, row.role) for row in found.pods] == [
        (0, "mnist-0-0", "a", "Member"),
        (1, "mnist-1-1", "c", "Member"),
    ]
    assert found.next == []


def test_status_shows_pods_that_have_not_joined_with_what_they_wait_for() -> None:
    waits = pod("mnist-2-0", "Pending", waiting="Unschedulable: 0/3 nodes are available")
    found = status(after_a_loss(), [*PODS, waits], NOW)
    assert (found.pods[-1].pod, found.pods[-1].role) == ("mnist-2-0", "Unschedulable")
    assert found.pods[-1].message == "Unschedulable: 0/3 nodes are available"


def test_a_failure_is_told_from_its_round_to_what_it_cost() -> None:
    found = why(after_a_loss(), PODS, ["Traceback", "boom"], NOW)
    assert found.sentences == [
        f"Round 1 ended 2m ago (PodLost, noticed after 1.0 s): {LOST}",
        "It is counted under infrastructure: 1 restart, no limit.",
        "First to fail: mnist-1-0 (group rank 1) on node b: exit code 137, SIGKILL.",
        "Round 2 followed with 2 members; all had met after 85 ms, the first step came after 4.1 s; "
        "50 steps were trained again.",
    ]
    assert (found.log_pod, found.log) == ("mnist-1-0", ["Traceback", "boom"])


@pytest.mark.parametrize(
    ("resumed", "words"),
    [
        (
            {"step": 1849, "from": "Memory", "redoneSteps": 1, "milliseconds": 640},
            "its state, of step 1849, came from the memory of its own pods in 640 ms; "
            "1 step was trained again",
        ),
        (
            {"step": 1850, "from": "Peer", "redoneSteps": 0, "milliseconds": 1500},
            "its state, of step 1850, came from memory, some of it that of other pods in 1.5 s",
        ),
        (
            {"step": 1800, "from": "Storage", "milliseconds": 5200},
            "its state, of step 1800, came from storage in 5.2 s; 50 steps were trained again",
        ),
        (
            {"step": 0, "from": "Nothing", "redoneSteps": 1850, "milliseconds": 3},
            "there was no checkpoint to resume from; 1850 steps were trained again",
        ),
        (
            {"step": 1850, "from": "Satellite", "redoneSteps": 0},
            "its state, of step 1850, came from Satellite in 0 ms",
        ),
    ],
)
def test_where_the_state_came_from_is_told(resumed: dict[str, Any], words: str) -> None:
    second, first = msgspec.to_builtins(after_a_loss().status)["roundHistory"]
    job = after_a_loss(roundHistory=[{**second, "resumed": resumed}, first])
    told = why(job, PODS, [], NOW).sentences[-1]
    assert told.endswith(f", the first step came after 4.1 s; {words}.")
    drawn = report(job, [], NOW)
    assert words.split("; ")[0] in drawn.bars[1].text


def test_a_log_that_is_gone_is_said_to_be_gone() -> None:
    found = why(after_a_loss(), [pod("mnist-0-0")], [], NOW)
    assert "The pod mnist-1-0 is gone, and its log with it." in found.sentences


def test_another_pod_of_the_same_name_is_not_read() -> None:
    failure = after_a_loss().status.last_failure  # type: ignore[union-attr]
    (other,) = [pod("mnist-1-0")]
    assert pod_to_read(failure, [other]) is other
    assert pod_to_read(failure, [pod("mnist-1-1")]) is None


def test_no_failure_is_said_too() -> None:
    quiet = job({"conditions": conditions("FormingRound", "waiting for mnist-1-0")})
    assert why(quiet, [], [], NOW).sentences == [
        "No failure so far. The job is FormingRound: waiting for mnist-1-0."
    ]


def test_a_round_that_was_asked_for_must_be_there_and_over() -> None:
    with pytest.raises(ValueError, match="round 9 is not in the status of mnist, which has 1 to 2"):
        ended_round(after_a_loss(), 9)
    with pytest.raises(ValueError, match="round 2 of mnist has not ended"):
        ended_round(after_a_loss(), 2)
    first = ended_round(after_a_loss(), 1)
    assert first is not None
    assert first.number == 1


def test_a_pod_that_ended_while_no_round_ran_is_told_without_a_round() -> None:
    failure = {
        "podName": "mnist-1-3",
        "nodeName": "b",
        "exitCode": 1,
        "message": "no module",
        "time": ago(60),
    }
    found = why(after_a_loss(lastFailure=failure), PODS, [], NOW)
    assert found.sentences[0] == "mnist-1-3 on node b ended 60s ago while no round ran: exit code 1."
    assert found.sentences[1] == "no module."
    assert found.ended is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "exit code 1"),
        (-9, "exit code -9, SIGKILL"),
        (137, "exit code 137, SIGKILL"),
        (143, "exit code 143, SIGTERM"),
    ],
)
def test_exit_codes_say_which_signal(code: int, text: str) -> None:
    assert exit_code(code) == text


def failed(reason: str) -> ElasticJob:
    said = conditions("Failed", "over", (reason, "the sixth restart"))
    return after_a_loss(conditions=said, terminalState="Failed")


def test_a_job_that_failed_says_why_and_that_it_stays_so() -> None:
    over = failed("ApplicationRestartsExhausted")
    assert status(over, PODS, NOW).message == "ApplicationRestartsExhausted: the sixth restart"
    steps = next_steps(over, PODS, NOW)
    assert "spec.failurePolicy.application.maxRestarts" in steps[1]
    assert "delete it and create it again" in steps[-1]
    sentences = why(over, PODS, [], NOW).sentences
    assert sentences[0] == "The job has failed: ApplicationRestartsExhausted: the sixth restart."
    assert "torchrun" in next_steps(failed("NeverJoined"), PODS, NOW)[1]


def state(name: str, **others: Any) -> ElasticJob:
    return after_a_loss(conditions=conditions(name, "as it is"), **others)


def test_what_to_do_next_depends_on_the_state() -> None:
    def first(name: str, *pods: Any) -> str:
        return next_steps(state(name), pods, NOW)[0]

    assert "elasticjob resume mnist" in first("Suspended")
    assert "node.kubernetes.io/out-of-service" in first("WaitingForFencing")
    assert "elasticjob events mnist" in first("WaitingForPods")
    assert "logs mnist --all" in first("FormingRound", pod("mnist-0-0"))
    assert "no node has room" in first(
        "WaitingForPods", pod("mnist-0-0", "Pending", waiting="Unschedulable: full")
    )
    assert "image" in first("WaitingForPods", pod("mnist-0-0", "Pending", waiting="ErrImagePull: no such"))


def test_an_account_that_is_used_up_is_a_warning() -> None:
    accounts = [{"name": "application", "used": 5, "maxRestarts": 5, "windowSeconds": 3600}]
    (warning,) = next_steps(state("Training", accounts=accounts), PODS, NOW)
    assert warning.startswith("5 of 5 restarts of the account application are used within 1h")


def test_a_job_that_no_operator_has_seen() -> None:
    found = status(job(None), [], NOW)
    assert found.state == NO_STATUS
    assert "elasticjob doctor" in found.next[0]
    assert next_steps(job(None, managedBy="kueue.x-k8s.io/multikueue"), [], NOW) == [
        "spec.managedBy leaves this job to kueue.x-k8s.io/multikueue"
    ]


def test_a_row_counts_only_members_of_a_round_that_runs() -> None:
    row = listing.row(after_a_loss(), NOW)
    assert (row.state, row.members, row.replicas, row.round, row.step) == ("Training", 2, 2, 2, 2000)
    broken = {"number": 2, "phase": "Broken", "members": 2}
    assert listing.row(after_a_loss(currentRound=broken), NOW).members == 0


def test_a_node_without_a_name_is_that_of_the_pod() -> None:
    assert [node_words(name) for name in ("", "b", "node-b")] == ["its node", "node b", "node-b"]
