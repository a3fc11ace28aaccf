"""The checker and the comparison find what they are there to find: each test breaks one promise by hand."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elasticjob.contract.names import ROUND_ANNOTATION
from elasticjob_operator.plan.state.evidence import CAUSES
from tests.chaos.checker import Checker
from tests.chaos.faults import Kind, plan
from tests.chaos.kinds import BY_NAME, KINDS, may_end_round
from tests.chaos.planned import PLANNED
from tests.chaos.timeline import Timeline
from tests.chaos.training import Training, compare, effective, redone_after
from tests.chaos.watcher import Sight

TIME = "2026-01-01T00:00:00.000000Z"
Body = dict[str, Any]


def job(
    number: int = 1, phase: str = "Active", ids: tuple[str, ...] = ("aaaa", "bbbb"), **status: Any
) -> Body:
    """An ElasticJob in this round, established, all charged."""
    charges = [{"round": n, "time": TIME} for n in range(1, number)]
    return {
        "metadata": {"generation": 1, "resourceVersion": "1"},
        "spec": {"replicas": 2, "minReplicas": 2},
        "status": {
            "observedGeneration": 1,
            "restarts": len(charges),
            "currentRound": {
                "number": number,
                "phase": phase,
                "leaderPodName": "job-0-0",
                "members": len(ids),
                "cause": "WorkerFailed",
                "establishedTime": TIME,
            },
            "participants": [
                {
                    "id": one,
                    "podName": f"job-{rank}-0",
                    "podUID": str(rank),
                    "state": "Member",
                    "groupRank": rank,
                }
                for rank, one in enumerate(ids)
            ],
            "roundHistory": [
                {"number": n, "startTime": TIME, "cause": "c", "members": 2} for n in range(number, 0, -1)
            ],
            "accounts": [{"name": "application", "charges": charges}],
            "internal": {
                "minReaderVersion": 1,
                "round": {"nonce": f"n{number}", "leaderEndpoint": "h:1"},
            },
            **status,
        },
    }


def lease(
    number: int, phase: str = "Active", ids: tuple[str, ...] = ("aaaa", "bbbb"), version: str = "1"
) -> Body:
    record = {
        "version": 1,
        "jobUID": "u",
        "round": number,
        "phase": phase,
        "nonce": f"n{number}",
        "leaderEndpoint": "h:1",
        "memberIDs": list(ids),
    }
    return {"metadata": {"resourceVersion": version, "annotations": {ROUND_ANNOTATION: json.dumps(record)}}}


@pytest.fixture
def checker() -> Checker:
    return Checker(Timeline(lambda _: None), trained=lambda: False, forgives=may_end_round)


def see(checker: Checker, *bodies: Body) -> list[str]:
    for body in bodies:
        sight = Sight(body, deleted=False, gap=False)
        (checker.see_job if "spec" in body else checker.see_lease)(sight)
    return checker.violations


def changed(body: Body, change: Callable[[Body], object]) -> Body:
    other = copy.deepcopy(body)
    change(other["status"])
    return other


SECOND = job(2, ids=("cccc", "dddd"))


def test_a_good_history_has_no_violation(checker: Checker) -> None:
    assert see(checker, job(), lease(1), job(phase="Broken"), lease(1, "Broken"), SECOND) == []
    assert see(checker, lease(2, ids=("cccc", "dddd"))) == []
    assert checker.lease_differs_seconds() == 0


def test_a_suspended_job_has_no_members(checker: Checker) -> None:
    ended = changed(job(phase="Broken"), lambda s: s["currentRound"].update(end={"cause": "Suspended"}))
    stopping = changed(ended, lambda s: s["currentRound"].update(members=0))
    gone = changed(stopping, lambda s: s.update(participants=[]))
    assert see(checker, job(), ended, stopping, gone, SECOND) == []


@pytest.mark.parametrize(
    ("invariant", "history"),
    [
        ("I1: status.currentRound went back", [SECOND, job()]),
        ("I1: status.currentRound went back", [job(phase="Broken"), job()]),
        ("I1: the round Lease went back", [lease(1, "Broken"), lease(1)]),
        ("I1: round 1 is", [job(), lease(1, ids=("aaaa", "eeee"))]),
        ("I1: round 1 is", [job(), changed(job(), lambda s: s["internal"]["round"].update(nonce="other"))]),
        ("I2", [changed(job(), lambda s: s["participants"][1].update(groupRank=2))]),
        ("I3", [job(ids=("aaaa",))]),
        ("I3", [job(ids=("aaaa", "bbbb", "cccc"))]),
        ("I4: the id aaaa is in the rounds 1 and 2", [job(), job(2, ids=("aaaa", "dddd"))]),
        ("I7: charges have vanished", [SECOND, changed(SECOND, lambda s: s.update(accounts=[], restarts=0))]),
        (
            "I7: charged twice",
            [changed(SECOND, lambda s: s["accounts"].append({**s["accounts"][0], "name": "scaling"}))],
        ),
        ("I7: restarts is 3", [changed(SECOND, lambda s: s.update(restarts=3))]),
        (
            "I7: the end of round 1",
            [job(), changed(SECOND, lambda s: s.update(accounts=[], restarts=0))],
        ),
        (
            "end: the job has failed",
            [job(conditions=[{"type": "Failed", "status": "True", "reason": "x"}])],
        ),
        (
            "end: the job is Complete",
            [job(conditions=[{"type": "Complete", "status": "True", "reason": "x"}])],
        ),
    ],
)
def test_a_broken_promise_is_seen(checker: Checker, invariant: str, history: list[Body]) -> None:
    assert any(one.startswith(invariant) for one in see(checker, *history)), checker.violations


def test_a_charge_may_move_to_another_account(checker: Checker) -> None:
    moved = changed(SECOND, lambda s: s["accounts"][0].update(name="infrastructure"))
    assert see(checker, SECOND, moved) == []


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_a_round_that_a_harmless_fault_ends_is_seen(checker: Checker, name: str) -> None:
    see(checker, job())
    checker.timeline.fault(name, "", calm=True)
    violated = [v for v in see(checker, job(phase="Broken")) if v.startswith("I5")]
    assert bool(violated) is not BY_NAME[name].ends_rounds


@pytest.mark.parametrize("kind", PLANNED, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("wrong", "differs"),
    [
        (False, {}),
        (True, {"drain": "NotSupported"}),
        (True, {"drain": "DeadlineExceeded"}),
        (True, {"cause": "WorkerFailed"}),
        (True, {"account": "application"}),
    ],
    ids=str,
)
def test_a_planned_change_that_does_not_drain_is_seen(
    checker: Checker, kind: Kind, wrong: bool, differs: Body
) -> None:
    see(checker, job())
    checker.timeline.fault(kind.name, "job-1-0", calm=True, cause=kind.cause, drains=1)
    drain = {"startTime": TIME, "deadlineTime": TIME, "cause": kind.cause, "message": "m"}
    drains = changed(job(phase="Draining"), lambda s: s["currentRound"].update(drain=drain))
    assert see(checker, drains, lease(1, "Draining")) == []
    assert checker.lease_differs_seconds() == 0
    end = {"cause": kind.cause, "account": CAUSES[kind.cause], "drain": "Stopped", "time": TIME} | differs
    broken = changed(job(phase="Broken"), lambda s: s["currentRound"].update(end=end))
    violated = see(checker, changed(broken, lambda s: s["roundHistory"][0].update(end=end)))
    assert [one.split(":")[0] for one in violated] == (["drain"] if wrong else [])


def test_what_the_test_itself_wrote_is_not_held_against_anybody(checker: Checker) -> None:
    see(checker, lease(1, "Broken"))
    with checker.tampering() as announce:
        announce("7")
    assert see(checker, job(phase="Broken"), lease(1, version="7")) == []
    assert checker.lease_differs_seconds() > 0, "it must be mended all the same"
    assert see(checker, lease(1, "Broken", version="8")) == []
    assert checker.lease_differs_seconds() == 0
    checker.see_lease(Sight(lease(1, "Broken", version="9"), deleted=True, gap=False))
    assert checker.lease_differs_seconds() > 0


def test_the_same_seed_is_the_same_plan() -> None:
    first, second, other = (plan(seed, 600, KINDS) for seed in (7, 7, 8))
    assert [str(p) for p in first] == [str(p) for p in second] != [str(p) for p in other]
    assert {p.kind.name for p in first} == {kind.name for kind in KINDS}, "ten minutes have every kind"
    assert all(10 <= b.at - a.at <= 20 for a, b in pairwise(first))


def step(number: int, round_number: int, loss: float = 1.0, ids: str = "") -> Body:
    return {"step": number, "round": round_number, "loss": loss, "ids": ids or f"ids-{number}"}


def training(folder: Path, log: list[Body], final_loss: float = 0.5) -> Training:
    folder.mkdir()
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (folder / "result.json").write_text(json.dumps({"final_loss": final_loss}))
    return Training(folder, epochs=1)


WHOLE = [step(n, 0) for n in range(1, 24)]
HALVES = [step(n, 1) for n in range(1, 14)] + [step(n, 3) for n in range(11, 24)]


def test_steps_redone_from_a_checkpoint_do_not_count() -> None:
    assert [line["step"] for line in effective(HALVES)] == list(range(1, 24))
    late = [*HALVES, step(14, 1)]
    assert effective(late) == effective(HALVES), "what a leftover of round 1 logs late does not count either"


def test_steps_redone_after_a_drain_are_seen() -> None:
    log = [step(n, 1) for n in range(1, 14)] + [step(n, 3) for n in range(14, 24)]
    assert redone_after(log, [1]) == []
    assert redone_after(log, [1, 2, 3]) == [], "rounds without a step, and the last one, have none to redo"
    assert redone_after(HALVES, []) == []
    assert redone_after(HALVES, [1]) == [
        "round 1 stopped at step 13 for a planned change, and round 3 went on with step 11"
    ]


@pytest.mark.parametrize(
    ("wrong", "log", "final_loss"),
    [
        ("", HALVES, 0.5001),
        ("steps are lost", HALVES[:9] + HALVES[13:], 0.5),
        ("logged the steps", HALVES[:5] + HALVES[6:], 0.5),
        ("22 steps count", HALVES[:-1], 0.5),
        ("sample ids", [*HALVES[:-1], step(23, 3, ids="other")], 0.5),
        ("had the loss", [*HALVES[:-1], step(23, 3, loss=1.002)], 0.5),
        ("the final loss is", HALVES, 0.502),
    ],
)
def test_another_training_is_seen(tmp_path: Path, wrong: str, log: list[Body], final_loss: float) -> None:
    found = compare(training(tmp_path / "a", log, final_loss), training(tmp_path / "b", WHOLE))
    assert [wrong in one for one in found] == ([True] if wrong else [])
