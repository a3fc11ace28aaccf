"""A failure on purpose: what it takes, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from click.testing import Result

from elasticjob_client.explain.drill import cost, recovered, victims
from elasticjob_client.resource import ElasticJob
from tests.unit.client.made import LOST, after_a_loss, ago, conditions, pod
from tests.unit.client.server import JOBS, Server, refusal
from tests.unit.client.server import PODS as PATH

BUSY = refusal(503, "ServiceUnavailable", "later")
PODS = [pod("mnist-0-0"), pod("mnist-1-0", "Failed"), pod("mnist-1-1")]


@pytest.mark.parametrize(("kill", "names"), [("rank:0", ["mnist-0-0"]), ("node:c", ["mnist-1-1"])])
def test_members_are_killed_by_rank_or_node(kill: str, names: list[str]) -> None:
    assert [one.name for one in victims(after_a_loss(), PODS, kill)] == names


@pytest.mark.parametrize(
    ("kill", "said"),
    [
        ("pod:x", "expected rank:R, node:NAME or operator"),
        ("rank:x", "expected rank:R, node:NAME or operator"),
        ("rank:7", "no member of mnist is rank 7: expected a group rank from 0 to 1"),
        ("node:b", "no member of mnist is node b: expected one of a, c"),
    ],
)
def test_what_is_not_there_cannot_be_killed(kill: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        victims(after_a_loss(), PODS, kill)


@pytest.mark.parametrize("kill", ["foo", "rank:x", "rank:", "node:", "rank:²", "operator:x", ""])
def test_what_cannot_be_killed_is_a_wrong_command_line(
    server: Server, run: Callable[..., Result], kill: str
) -> None:
    result = run("drill", "mnist", "--kill", kill, "--yes")
    assert result.exit_code == 2, result.exception
    assert f"{kill!r} cannot be killed: expected rank:R, node:NAME or operator" in result.stderr
    assert not server.asked


def test_a_drill_ends_no_job() -> None:
    used = [{"name": "preemption", "used": 1, "maxRestarts": 1}]
    with pytest.raises(
        ValueError, match="a drill would end mnist: 1 of 1 restarts of the account preemption"
    ):
        victims(after_a_loss(accounts=used), PODS, "rank:0")
    with pytest.raises(ValueError, match=r"mnist does not train \(Suspended\)"):
        victims(after_a_loss(conditions=conditions("Suspended", "")), PODS, "rank:0")


def test_a_round_whose_members_never_met_is_passed_over() -> None:
    seen = msgspec.to_builtins(after_a_loss().status)["roundHistory"]
    third = {**seen[0], "number": 3}
    unmet = {
        "number": 2,
        "cause": "PodLost",
        "members": 2,
        "startTime": seen[0]["startTime"],
        "end": seen[1]["end"],
    }
    assert not recovered(after_a_loss(roundHistory=[unmet, seen[1]]), 1, [])
    job = after_a_loss(roundHistory=[third, unmet, seen[1]])
    assert recovered(job, 1, [])
    found = cost(job, 1, [])
    assert found.following.number == 3
    assert "Round 3: 2 members (before: 2) had met after 85 ms." in found.sentences


def test_the_cost_is_told() -> None:
    assert recovered(after_a_loss(), 1, [])
    assert not recovered(after_a_loss(), 2, [])
    found = cost(after_a_loss(), 1, [pod("mnist-1-0")])
    assert found.sentences == [
        f"Round 1 ended: {LOST}",
        "Noticed after 1.0 s.",
        "Round 2: 2 members (before: 2) had met after 85 ms.",
        "The first step came after 4.1 s.",
        "50 steps were trained again.",
        "Counted under infrastructure (PodLost).",
    ]
    assert (found.killed, found.steps_redone) == (["mnist-1-0"], 50)


def history(*rounds: dict[str, Any]) -> ElasticJob:
    """Newest first; the newest runs, and the job trains in it."""
    current = {"number": rounds[0]["number"], "phase": "Active", "members": rounds[0]["members"]}
    return after_a_loss(roundHistory=list(rounds), currentRound=current)


def a_round(number: int, members: int = 2, end: str = "", **fields: Any) -> dict[str, Any]:
    ended = {"end": {"time": ago(50 - number), "cause": "PodDeleted", "message": end}} if end else {}
    start = {"startTime": ago(51 - number), "rendezvousMilliseconds": 50}
    return {"number": number, "cause": "PodDeleted", "members": members, **start, **ended, **fields}


KILLED = "mnist-0-0 (group rank 0) was lost: the pod was deleted"


def test_a_round_that_follows_at_once_is_not_the_one_that_is_judged() -> None:
    """One trains on alone until the replacement is there a moment later: the first step is in the third."""
    first = a_round(1, end=KILLED, firstStep=1, lastStep=90)
    alone = a_round(2, members=1, end="mnist-0-1 has joined")
    killed = [pod("mnist-0-0")]
    assert not recovered(history(a_round(2, members=1), first), 1, killed)
    assert not recovered(history(a_round(3), alone, first), 1, killed), "it reports steps, and made none yet"
    job = history(a_round(3, firstStep=81, lastStep=99, firstStepMilliseconds=900), alone, first)
    assert recovered(job, 1, killed)
    found = cost(job, 1, killed)
    assert (found.ended.number, found.following.number, found.steps_redone) == (1, 3, 10)
    assert "Round 2: 1 member (before: 2) had met after 50 ms." in found.sentences
    assert "Round 3, with 2 members, made the first step after 1.9 s." in found.sentences


def test_a_round_that_ends_just_before_the_kill_is_not_the_one_that_was_hit() -> None:
    before = a_round(1, end="mnist-1-0 has joined", firstStep=1, lastStep=50)
    hit = a_round(2, end=KILLED, firstStep=51, lastStep=60, firstStepMilliseconds=1)
    killed = [pod("mnist-0-0")]
    running = a_round(2, firstStep=51, lastStep=60, firstStepMilliseconds=1)
    assert not recovered(history(running, before), 1, killed), "the killed pod is still a member of it"
    job = history(a_round(3, firstStep=56, lastStep=56, firstStepMilliseconds=7), hit, before)
    assert recovered(job, 1, killed)
    assert cost(job, 1, killed).ended.number == 2
    assert cost(job, 1, killed).steps_redone == 5


def test_without_a_terminal_a_drill_names_the_flag(server: Server, run: Callable[..., Result]) -> None:
    assert "--yes goes on without" in str(run("drill", "mnist", "--kill", "rank:0").exception)
    assert not [method for method, _, _ in server.asked if method == "DELETE"]


def test_a_job_that_does_not_recover_in_time(
    server: Server, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server.answers[f"DELETE {PATH}/mnist-0-0"] = {"kind": "Status"}
    result = run("drill", "mnist", "--kill", "rank:0", "--yes", "--timeout", "0.1")
    assert str(result.exception) == (
        "mnist has not recovered yet: it is Training: round 2 with 2 members, leader mnist-0-0; waited 0.1 s"
    )
    seen = iter([server.answers[f"{JOBS}/mnist"]] * 2)

    class Answers(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            return next(seen, BUSY) if key == f"{JOBS}/mnist" else super().get(key, default)

    server.answers = Answers(server.answers)
    result = run("drill", "mnist", "--kill", "rank:0", "--yes", "--timeout", "0.1")
    assert str(result.exception) == (
        "mnist has not recovered yet: it is Training: round 2 with 2 members, leader mnist-0-0 "
        "(as last seen: the API server answers 503: later); waited 0.1 s"
    )
    assert "0 is not in the range x>0" in run("drill", "mnist", "--kill", "rank:0", "--timeout", "0").stderr
