"""A handler that may not do what it must: missing rights, a token that is not accepted, no such job."""

from __future__ import annotations

import logging

import pytest
from torch.distributed.elastic.rendezvous import RendezvousStateError

from devcluster.wait import wait_for
from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.api.errors import Forbidden, Unauthorized
from tests.unit.handler.joining import Joining, Start, form, two
from tests.unit.memory_api import Leases, broken

MISSING = 'leases is forbidden: User "x" cannot patch resource "leases" in API group "coordination.k8s.io"'
"""As the API server says that a right is missing."""


def test_missing_rights_end_with_advice(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob.agent.joining.GRANT_SECONDS", 0.5)
    leases.error = Forbidden(MISSING, 403)
    ends_with(start("a"), "job-round", "Lease a", "RoleBinding", "kubectl -n ns get ej job")


# shows: every token is rejected with 401: a new signing key, a deleted account of a template's own
# shows: the API server's signing key changes: every token is 401
def test_a_token_that_nobody_accepts_ends_with_advice(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the limit for missing rights: kubelet may be about to replace it."""
    monkeypatch.setattr("elasticjob.agent.joining.RBAC_SECONDS", 0.0)
    monkeypatch.setattr("elasticjob.agent.joining.TOKEN_SECONDS", 0.5)
    leases.error = Unauthorized("Unauthorized", 401)
    ends_with(
        start("a"),
        "has rejected this pod's token",
        "kubectl -n ns get pod a",
        "kubectl -n ns get serviceaccounts",
    )


# shows: every token is rejected with 401: a new signing key, a deleted account of a template's own
def test_a_token_that_the_kubelet_will_not_replace_soon_is_not_waited_for(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its service account was deleted and made again. What it cannot report stands in its last words."""
    monkeypatch.setattr("elasticjob.agent.joining.REFUSED_SECONDS", 0.5)
    handlers, _, _ = two(leases, start)
    leases.error = Unauthorized("Unauthorized", 401)
    leases.error.lasting = True
    ends_with(handlers[1], "a worker failed in round 1 (", "and the API server has rejected this pod's token")


def ends_with(handler: K8sRendezvousHandler, *words: str) -> None:
    """It gives up joining, with all of the words."""
    with pytest.raises(RendezvousStateError) as error:
        Joining(handler).result()
    for one in words:
        assert one in str(error.value)


# shows: the API server's signing key changes: every token is 401
def test_a_token_that_nobody_accepts_ends_no_round(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I5. Nothing is renewed meanwhile, which the log says; with a new token all is well again."""
    monkeypatch.setattr("elasticjob.leases.writer.WARN_SECONDS", 0.0)
    handlers, _, record = two(leases, start)
    leases.wait_for(lambda: leases.report("a") is not None, "the leader's report")
    leases.error = Unauthorized("Unauthorized", 401)
    with caplog.at_level(logging.WARNING, "elasticjob"):
        for handler in handlers:
            handler._parts.lease.write()
        wait_for(lambda: len(caplog.records) == 2, 60, "both say so")
    assert "the API server rejects this pod's token" in caplog.text
    assert [h.num_nodes_waiting() for h in handlers] == [0, 0]
    leases.error = None
    leases.publish(broken(record))
    wait_for(lambda: all(h.num_nodes_waiting() for h in handlers), 60, "both hear of the round's end")
    again = [Joining(handler) for handler in handlers]
    for pod, former in zip("ab", record.member_ids, strict=True):
        leases.announced(pod, former)
    form(leases, 2, "a", "b")
    assert [one.result().rank for one in again] == [0, 1]


def test_a_missing_job_is_an_error(leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob.agent.joining.NO_JOB_SECONDS", 0.1)
    leases.jobs["job"] = False
    with pytest.raises(RendezvousStateError, match="there is no ElasticJob job in namespace ns"):
        Joining(start("a")).result()


def test_a_pod_that_was_never_granted_its_rights_waits_for_the_operator(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod of others that starts while the operator is away: each would end with exit code 1."""
    monkeypatch.setattr("elasticjob.agent.joining.RBAC_SECONDS", 0.2)
    monkeypatch.setattr("elasticjob.agent.joining.FIRST_LOG_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    leases.error = Forbidden(MISSING, 403)
    joining = Joining(start("a"))
    wait_for(lambda: "for the operator to grant this pod its rights" in caplog.text, 20, "it says so")
    assert joining.waits()
    leases.error = None
    form(leases, 1, "a")
    assert joining.result(60).rank == 0


@pytest.mark.parametrize("why", ["another namespace", "an admission policy"])
def test_what_no_operator_would_grant_is_an_error_soon(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("elasticjob.agent.joining.RBAC_SECONDS", 0.5)
    policy = "ValidatingAdmissionPolicy 'own' with binding 'own' denied request: not this pod's Lease"
    leases.error = Forbidden(policy if why == "an admission policy" else MISSING, 403)
    ends_with(start("a", other_namespace=why == "another namespace"), "denied access for")


def test_rights_that_were_taken_away_are_an_error_soon(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ElasticJob was deleted under its pods, and its Role with it."""
    monkeypatch.setattr("elasticjob.agent.joining.RBAC_SECONDS", 0.5)
    handlers, _, _ = two(leases, start)
    with leases.changed:
        leases.error = Forbidden(MISSING, 403)
        leases.changed.notify_all()
    ends_with(handlers[1], "denied access for")


@pytest.mark.parametrize("why", [MISSING, 'admission webhook "leases.example.com" denied the request: no'])
# shows: a job's Role or RoleBinding is deleted, or a policy denies its pods' Leases
def test_a_pod_of_the_operator_s_waits_for_rights_that_were_taken_away(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The Role was deleted, or a policy rolled out: each member would end with exit code 1, charged
    to its script."""
    monkeypatch.setattr("elasticjob.agent.joining.RBAC_SECONDS", 0.2)
    handlers = [start(pod, job_uid="uid") for pod in ("a", "b")]
    joining = [Joining(handler) for handler in handlers]
    record = form(leases, 1, "a", "b")
    assert [one.result(60).rank for one in joining] == [0, 1]
    with leases.changed:
        leases.error = Forbidden(why, 403)
        leases.changed.notify_all()
    again = [Joining(handler) for handler in handlers]
    wait_for(
        lambda: all(h._parts.lease.auth_errors.seconds(Forbidden) > 1 for h in handlers), 60, "it is refused"
    )
    assert all(one.waits() for one in again)
    leases.error = None
    leases.publish(broken(record))
    for pod, before in zip("ab", record.member_ids, strict=True):
        leases.announced(pod, but=before)
    form(leases, 2, "a", "b")
    assert {one.result(60).rank for one in again} == {0, 1}
