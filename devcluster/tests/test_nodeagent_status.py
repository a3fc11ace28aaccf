"""Pod phases, conditions and container statuses from the states of containers."""

from __future__ import annotations

from typing import Any

import pytest

from devcluster.nodeagent.status import (
    NOT_ADMITTED,
    Addresses,
    Container,
    Kind,
    Running,
    State,
    Terminated,
    Waiting,
    evicted,
    phase,
    pod_status,
)

UP = Running("t0")
GOOD = Terminated(0, "Completed", "t1", "t0")
BAD = Terminated(1, "Error", "t1", "t0")
BEFORE = Waiting("PodInitializing")
EVICTED = evicted("The node was low on resource: memory. ")
CRASHED = Waiting("CrashLoopBackOff", "back-off 1s")


def _container(state: State, kind: Kind = "main", **fields: Any) -> Container:
    return Container(f"{kind}-c", "image", state, kind=kind, **fields)


def _status(*containers: Container, pod: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    return pod_status(
        pod or {"metadata": {"generation": 1}, "spec": {}},
        Addresses("10.0.0.1", "10.0.0.2"),
        [c for c in containers if c.kind != "main"],
        [c for c in containers if c.kind == "main"],
        **{"start_time": "t0", "ended": False, "now": "now", "previous": [], **arguments},
    )


def _conditions(status: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status["conditions"]}


@pytest.mark.parametrize(
    ("init", "main", "ended", "expected"),
    [
        ([], [Waiting()], False, "Pending"),
        ([], [UP], False, "Running"),
        ([], [UP, Waiting()], False, "Pending"),
        ([], [UP, BAD], False, "Running"),
        ([], [GOOD, GOOD], True, "Succeeded"),
        ([], [GOOD, BAD], True, "Failed"),
        ([UP], [BEFORE], False, "Pending"),
        ([BAD], [BEFORE], True, "Failed"),
        ([GOOD], [UP], False, "Running"),
    ],
)
def test_phase(init: list[State], main: list[State], ended: bool, expected: str) -> None:
    assert phase([_container(s, "init") for s in init], [_container(s) for s in main], ended) == expected


def test_container_between_two_runs_keeps_the_pod_running() -> None:
    container = _container(UP).become(BAD).become(CRASHED)
    assert container.last == BAD
    assert phase([], [container], ended=False) == "Running"


def test_exit_code_of_a_sidecar_does_not_count() -> None:
    assert phase([_container(BAD, "sidecar")], [_container(GOOD)], ended=True) == "Succeeded"


def test_container_that_does_not_run_is_not_ready() -> None:
    ready = _container(UP, ready=True, started=True)
    assert (ready.become(BAD).ready, ready.become(BAD).started) == (False, False)


def test_ready_pod() -> None:
    status = _status(_container(UP, ready=True, started=True))
    assert set(_conditions(status).values()) == {"True"}
    assert status["podIPs"] == [{"ip": "10.0.0.1"}]


def test_unready_container_is_named() -> None:
    status = _status(_container(UP))
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ContainersNotReady")
    assert "main-c" in ready["message"]


def test_ended_pod() -> None:
    status = _status(_container(GOOD), ended=True)
    expected = {"PodReadyToStartContainers": "False", "Initialized": "True"}
    assert _conditions(status) == expected | {"ContainersReady": "False", "Ready": "False"}
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_init_container_that_has_ended_well_counts_as_ready() -> None:
    status = _status(_container(GOOD, "init"), _container(UP))
    assert status["initContainerStatuses"][0]["ready"]
    assert _conditions(status)["Initialized"] == "True"


def test_sidecar_must_have_started() -> None:
    assert _conditions(_status(_container(UP, "sidecar"), _container(BEFORE)))["Initialized"] == "False"
    started = _container(UP, "sidecar", started=True)
    assert _conditions(_status(started, _container(BEFORE)))["Initialized"] == "True"


def test_condition_that_stays_keeps_its_time() -> None:
    first = _status(_container(UP), now="t1")
    second = _status(_container(UP, ready=True), now="t2", previous=first["conditions"])
    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    assert (times["Initialized"], times["Ready"]) == ("t1", "t2")


def test_what_kubelet_ended_is_failed_and_says_why() -> None:
    running = _status(_container(UP), termination=EVICTED)
    assert "reason" not in running, "nothing is told before all has ended"
    first = _status(_container(GOOD), ended=True, termination=EVICTED, now="t1")
    assert (first["phase"], first["reason"]) == ("Failed", "Evicted")
    assert _conditions(first)["DisruptionTarget"] == "True"
    second = _status(
        _container(GOOD), ended=True, termination=EVICTED, now="t2", previous=first["conditions"]
    )
    assert second["conditions"][-1]["lastTransitionTime"] == "t1"


def test_a_pod_that_is_not_admitted_has_no_containers() -> None:
    status = _status(_container(Waiting()), ended=True, termination=NOT_ADMITTED)
    assert status == {"phase": "Failed", "reason": "NodeShutdown", "message": NOT_ADMITTED.message}


def test_last_state_is_told() -> None:
    entry = _status(_container(UP).become(BAD).become(CRASHED))["containerStatuses"][0]
    assert entry["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 1s"}}
    assert entry["lastState"]["terminated"]["exitCode"] == 1
