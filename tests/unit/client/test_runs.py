"""Runs without an operator on the command line, from their Leases: in a cluster that has no ElasticJobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import Result

from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.run import PEER_ANNOTATION, RUN_LABEL, STATE_ANNOTATION, round_lease
from elasticjob.peers.settled import Settled
from elasticjob_client.errors import ClientError, Forbidden, NotFound, NotInstalled
from tests.unit.client.server import JOBS, Server, refusal
from tests.unit.peers.table import RUN, Table

LEASES = "/apis/coordination.k8s.io/v1/namespaces/research/leases"
Run = Callable[..., Result]


def lease(name: str, annotations: Mapping[str, str], holder: str = "") -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "research",
            "creationTimestamp": (now - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "labels": {RUN_LABEL: "mnist"},
            "annotations": {**annotations},
        },
        "spec": {"holderIdentity": holder, "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }


def participant(table: Table, name: str, **more: str) -> dict[str, Any]:
    peer = table.peers[name]
    introduction = PeerRecord(RUN.id, peer.slot, 2, 3).dump()
    own = {"elasticjob.dev/participant": peer.record.dump(), PEER_ANNOTATION: introduction}
    if peer.report is not None:
        own["elasticjob.dev/report"] = peer.report.dump()
    return lease(name, {**own, **{f"elasticjob.dev/{key}": text for key, text in more.items()}}, peer.key)


def round_of(settled: Settled, waiting: str = "", holder: str = "pod-1_uid") -> dict[str, Any]:
    """As it was written when this round was formed: that it is established is not written for itself."""
    settled = replace(settled, state=replace(settled.state, established=None))
    stands = {"elasticjob.dev/round": settled.record(waiting).dump(), STATE_ANNOTATION: settled.rest().dump()}
    return lease(round_lease("mnist"), stands, holder)


def put(server: Server, *leases: dict[str, Any]) -> None:
    """These are all Leases, and there are no ElasticJobs."""
    server.answers = {key: value for key, value in server.answers.items() if not key.startswith(JOBS)}
    server.answers[LEASES] = {"kind": "LeaseList", "metadata": {}, "items": list(leases)}


@pytest.fixture
def table() -> Table:
    """Round 1 of pod-0 and pod-1 trains; pod-2 stands by."""
    table = Table(minimum=1, maximum=2, last_call=0)
    table.train("pod-0", "pod-1")
    table.join("pod-2")
    return table


def test_status_of_a_run(server: Server, run: Run, table: Table) -> None:
    progress = ProgressReport(table.nonce, 0, 40, 0, 4000).dump()
    leader = participant(table, table.members[0], progress=progress)
    put(server, round_of(table.settled), leader, *(participant(table, name) for name in ("pod-1", "pod-2")))
    said = run("status", "mnist").stdout
    assert said.startswith("mnist is Training: round 1 with 2 members, leader pod-0, coordinator pod-1\n")
    assert "\nround 1 (Active), 2 of 2 members" in said
    assert re.search(r"\nstep 40 \(\w+ ago\); 100 ms per step", said), said
    found = json.loads(run("status", "mnist", "-o", "json").stdout)
    assert [(p["pod"], p.get("rank"), p["role"]) for p in found["pods"]] == [
        ("pod-0", 0, "Member"),
        ("pod-1", 1, "Member"),
        ("pod-2", None, "Standby"),
    ]


@pytest.mark.parametrize(
    ("reported", "noted", "state"),
    [
        (RoundReport("nonce-1", established=True), False, "Training"),
        (RoundReport("nonce-1", established=True, silent_ranks=(1,)), False, "Training"),
        (RoundReport("nonce-1", unarrived_ranks=(1,)), False, "Establishing"),
        (RoundReport("nonce-0", established=True), False, "Establishing"),
        ("{", False, "Establishing"),
        (None, False, "Establishing"),
        (None, True, "Training"),
    ],
)
def test_a_round_trains_when_its_leader_says_that_all_have_met(
    server: Server, run: Run, table: Table, reported: RoundReport | str | None, noted: bool, state: str
) -> None:
    """The coordinator writes nothing in a running round: the round Lease says so only if it has written for
    another reason, such as a pod that stands by."""
    text = reported.dump() if isinstance(reported, RoundReport) else reported or ""
    body = round_of(table.settled)
    if noted:
        body["metadata"]["annotations"][STATE_ANNOTATION] = table.settled.rest().dump()
    leader = participant(table, "pod-0", report=text)
    put(server, body, leader, participant(table, "pod-1"))
    assert run("status", "mnist").stdout.startswith(f"mnist is {state}: round 1 with 2 members")
    (row,) = json.loads(run("list", "-o", "json").stdout)["items"]
    assert row["state"] == state


def test_a_leader_whose_lease_is_gone_says_nothing(server: Server, run: Run, table: Table) -> None:
    put(server, round_of(table.settled), participant(table, "pod-1"))
    assert run("status", "mnist").stdout.startswith("mnist is Establishing: round 1 with 2 members")


@pytest.mark.parametrize(("before", "trained", "age"), [(3600, 100, 3500), (100, 100, 0), (None, 100, None)])
def test_a_step_is_as_old_as_the_training_says(
    server: Server, run: Run, table: Table, before: float | None, trained: float, age: int | None
) -> None:
    """The round began so many seconds ago, and has trained for so many. The leader renews its Lease all the
    time, and a coordinator that has just taken over notes only now that the round is established."""
    now = datetime.now(timezone.utc)
    began = now - timedelta(seconds=before) if before is not None else None
    state = replace(table.settled.state, start=began, established=now)
    progress = ProgressReport(table.nonce, 0, 40, 1000, round(trained * 1000) - 1000).dump()
    leader = participant(table, "pod-0", progress=progress)
    body = round_of(table.settled)
    body["metadata"]["annotations"][STATE_ANNOTATION] = replace(table.settled, state=state).rest().dump()
    put(server, body, leader)
    found = json.loads(run("status", "mnist", "-o", "json").stdout)
    assert found["progress"]["step"] == 40
    if age is None:
        assert found.get("progressAgeSeconds") is None
        return
    assert age <= found["progressAgeSeconds"] < age + 60
    (row,) = json.loads(run("list", "-o", "json").stdout)["items"]
    assert age <= row["stepAgeSeconds"] < age + 60


def test_why_it_waits(server: Server, run: Run, table: Table) -> None:
    table.fail("pod-1", "boom")
    table.look()
    table.join("pod-1")
    waiting = table.look().waiting
    put(server, round_of(table.settled, waiting or "for pod-0"), participant(table, "pod-1"))
    said = run("why", "mnist").stdout
    assert "Round 1 ended (WorkerFailed): a worker of pod-1 failed: boom\n" in said
    assert "The next round waits: " in said
    assert run("status", "mnist").stdout.startswith("mnist is FormingRound: ")


def test_why_it_has_ended(server: Server, run: Run, table: Table) -> None:
    table.succeed("pod-0", "pod-1")
    table.look()
    put(server, round_of(table.settled))
    said = run("why", "mnist").stdout
    assert said.startswith("The run is Complete: all members have succeeded\n")
    assert "another --rdzv-id" in said
    result = run("why", "mnist", "--round", "1")
    assert isinstance(result.exception, ClientError)
    assert "keep no history" in str(result.exception)


def test_a_list_has_runs_beside_jobs(server: Server, run: Run, table: Table) -> None:
    jobs = dict(server.answers)
    put(server, round_of(table.settled), participant(table, "pod-0"))
    (row,) = json.loads(run("list", "-o", "json").stdout)["items"]
    assert (row["name"], row["state"], row["members"], row["round"]) == ("mnist", "Training", 2, 1)
    server.answers.update({key: value for key, value in jobs.items() if key.startswith(JOBS)})
    assert len(json.loads(run("list", "-o", "json").stdout)["items"]) == 2


def test_a_lease_that_was_copied_is_no_pod(server: Server, run: Run, table: Table) -> None:
    own = participant(table, "pod-2", peer=PeerRecord(RUN.id, 2, 2, 3, "pod-2").dump())
    copied = {**own, "metadata": {**own["metadata"], "name": "a-copy"}}
    put(server, round_of(table.settled), participant(table, "pod-0"), own, copied)
    status = run("status", "mnist").stdout
    assert "pod-2" in status
    assert "a-copy" not in status


@pytest.mark.parametrize("state", ["{", '{"version":1}', ""])
def test_nonsense_in_a_lease_is_said(server: Server, run: Run, table: Table, state: str) -> None:
    body = round_of(table.settled)
    body["metadata"]["annotations"][STATE_ANNOTATION] = state
    bad = lease("pod-9", {PEER_ANNOTATION: state, "elasticjob.dev/participant": state})
    put(server, body, bad)
    assert "mnist is Unreadable: Lease mnist.peers-round cannot be read" in run("status", "mnist").stdout
    assert run("why", "mnist").exit_code == 0


def test_where_there_is_neither_the_job_is_missing(server: Server, run: Run) -> None:
    put(server)
    result = run("status", "mnist")
    assert isinstance(result.exception, NotInstalled)


def forbid(server: Server, *paths: str) -> None:
    """As the API server does, before it looks whether it has such a resource."""
    for path in paths:
        kind = path.rpartition("/")[2]
        server.answers[path] = refusal(403, "Forbidden", f'{kind} is forbidden: User "u" cannot list it')


@pytest.mark.parametrize("words", [("status", "mnist"), ("why", "mnist"), ("list",)])
def test_where_leases_may_not_be_listed_it_is_said(server: Server, run: Run, words: tuple[str, ...]) -> None:
    """As with the ClusterRole view, where there is no resource ElasticJob."""
    put(server)
    forbid(server, LEASES)
    result = run(*words)
    assert isinstance(result.exception, Forbidden)
    said = str(result.exception)
    assert 'cannot be seen: cannot list Leases of namespace research: leases is forbidden: User "u"' in said
    assert "the ClusterRole edit has and view has not" in said
    assert "Install ElasticJob" not in said


@pytest.mark.parametrize("words", [("status", "mnist"), ("why", "mnist")])
def test_who_may_read_neither_is_told_both_and_whom_to_ask(
    server: Server, run: Run, words: tuple[str, ...]
) -> None:
    put(server)
    forbid(server, LEASES, f"{JOBS}/mnist")
    said = str(run(*words).exception)
    assert 'User "u" cannot list it. Ask the administrators of the cluster for this right' in said
    assert "A run without an operator cannot be seen either: cannot list Leases of namespace research" in said
    assert "the ClusterRole edit has and view has not" in said


def test_an_empty_list_says_so_too(server: Server, run: Run) -> None:
    server.answers[JOBS] = {"kind": "List", "metadata": {}, "items": []}
    forbid(server, LEASES)
    result = run("list")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "no ElasticJobs in namespace research\nruns without an operator cannot be "
    )


def test_a_list_of_jobs_does_not_speak_of_runs_that_cannot_be_seen(server: Server, run: Run) -> None:
    forbid(server, LEASES)
    result = run("list")
    assert "mnist" in result.stdout
    assert not result.stderr


def test_a_user_who_may_read_no_elasticjobs_reads_runs(server: Server, run: Run, table: Table) -> None:
    """Without the resource, too, the API server says 403 to one with the ClusterRole edit."""
    put(server, round_of(table.settled), participant(table, "pod-0"))
    forbid(server, JOBS, f"{JOBS}/mnist", f"{JOBS}/cifar")
    assert run("status", "mnist").stdout.startswith("mnist is Training: round 1 with 2 members")
    assert "No round of mnist has ended." in run("why", "mnist").stdout
    assert json.loads(run("list", "-o", "json").stdout)["items"][0]["name"] == "mnist"
    result = run("status", "cifar")
    assert isinstance(result.exception, NotFound)
    assert "there is no run cifar without an operator in namespace research, and whether" in str(
        result.exception
    )
    put(server)
    forbid(server, JOBS)
    assert isinstance(run("list").exception, Forbidden)


def test_a_round_of_which_no_member_is_heard_does_not_train(server: Server, run: Run, table: Table) -> None:
    said = "round 1 should run, but no member has renewed its Lease for 180 s (pod-0, pod-1)"
    put(server, round_of(table.settled, said), participant(table, "pod-0"))
    assert run("status", "mnist").stdout.startswith(f"mnist is WaitingForFencing: {said}\n")
    assert f"It waits: {said}" in run("why", "mnist").stdout


@pytest.mark.parametrize(("ago", "silent"), [(90, False), (7200, True)])
def test_a_round_whose_pods_have_failed_and_are_kept_does_not_train(
    server: Server, run: Run, table: Table, ago: float, silent: bool
) -> None:
    """As those of a Job that has failed: their Leases stay with them, and no coordinator is left."""
    members = [participant(table, "pod-0"), participant(table, "pod-1")]
    for one in members:
        renewed = datetime.now(timezone.utc) - timedelta(seconds=ago)
        one["spec"]["renewTime"] = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    put(server, round_of(table.settled), *members, participant(table, "pod-2"))
    said = run("status", "mnist").stdout
    waits = "mnist is WaitingForFencing: round 1 should run, but no member has renewed its Lease for 2h"
    assert said.startswith(waits if silent else "mnist is Training: "), said
    assert ("It waits: round 1 should run, but no member" in run("why", "mnist").stdout) == silent


def test_one_that_succeeded_is_shown_so(server: Server, run: Run, table: Table) -> None:
    table.succeed("pod-0")
    table.look()
    put(server, round_of(table.settled), participant(table, "pod-0"))
    found = json.loads(run("status", "mnist", "-o", "json").stdout)
    assert found["pods"][0]["role"] == AnnouncedState.SUCCEEDED
    assert ParticipantRecord.parse(table.peers["pod-0"].record.dump()).state == AnnouncedState.SUCCEEDED


def roles(run: Run) -> list[tuple[str, str]]:
    return [(p["pod"], p["role"]) for p in json.loads(run("status", "mnist", "-o", "json").stdout)["pods"]]


def test_a_run_without_pods_does_not_train(server: Server, run: Run, table: Table) -> None:
    """Their Leases have gone with them, and no one is left to write into the round Lease."""
    put(server, round_of(table.settled))
    assert run("status", "mnist").stdout.startswith(
        f"mnist is WaitingForPods: no pod of run {RUN.id} is there. It goes on after round 1 when pods with "
        "this --rdzv-id come. If none will come, delete Lease mnist.peers-round\n"
    )
    assert roles(run) == [("pod-0", "Gone"), ("pod-1", "Gone")]
    (row,) = json.loads(run("list", "-o", "json").stdout)["items"]
    assert (row["state"], row.get("members", 0)) == ("WaitingForPods", 0)
    said = run("why", "mnist").stdout
    assert f"It waits: no pod of run {RUN.id} is there." in said
    assert "runs with" not in said


def test_a_run_that_never_trained_and_has_no_pods_says_so(server: Server, run: Run) -> None:
    put(server, round_of(Table().settled, "too few pods"))
    said = run("status", "mnist").stdout
    assert said.startswith(f"mnist is WaitingForPods: no pod of run {RUN.id} is there. It goes on when pods")


def test_members_are_known_by_the_uid_of_their_pods(server: Server, run: Run, table: Table) -> None:
    """A StatefulSet has made pod-1 again. The Lease of pod-0 cannot be read: its pod is there."""
    unreadable = lease("pod-0", {PEER_ANNOTATION: "{"}, table.peers["pod-0"].key)
    again = participant(table, "pod-1")
    again["spec"]["holderIdentity"] = "another"
    put(server, round_of(table.settled), unreadable, again)
    assert roles(run) == [("pod-0", "Member"), ("pod-1", "Gone")]
    assert run("status", "mnist").stdout.startswith("mnist is Establishing: round 1 with 2 members")
    put(server, round_of(table.settled), again, participant(table, "pod-2"))
    assert run("status", "mnist").stdout.startswith(
        "mnist is FormingRound: no member of round 1 is there any more, and 2 pods for the next, "
    )


def test_a_run_whose_last_round_may_train_waits_for_fencing(server: Server, run: Run, table: Table) -> None:
    """In the words of the coordinator."""
    table.report("pod-0", established=True, silent_ranks=(1,))
    table.look()
    table.join("pod-2")
    table.look(after=60)
    waiting = table.look(after=60).waiting
    assert "no member of the last round is known to have left it" in waiting
    put(server, round_of(table.settled, waiting), *(participant(table, f"pod-{n}") for n in range(3)))
    assert run("status", "mnist").stdout.startswith(f"mnist is WaitingForFencing: {waiting}\n")
    assert f"The next round waits: {waiting}" in run("why", "mnist").stdout


def test_members_that_do_not_meet_are_a_matter_of_the_network(server: Server, run: Run, table: Table) -> None:
    pods = [participant(table, f"pod-{n}") for n in range(3)]
    put(server, round_of(table.settled), *pods)
    assert "NetworkPolicy" not in run("status", "mnist").stdout
    state = replace(table.settled.state, nonce="next", phase="Broken", cause="NotEstablished")
    put(server, round_of(replace(table.settled, state=state)), *pods)
    for command in ("status", "why"):
        assert "see that no NetworkPolicy forbids it" in run(command, "mnist").stdout
