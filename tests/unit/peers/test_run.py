"""Which runs there can be, and that no operator's object has the name of one of theirs."""

from __future__ import annotations

import pytest

from elasticjob.contract import names
from elasticjob.peers.run import RUN_LABEL, Run, RunError, check_pod, check_run, round_lease


@pytest.mark.parametrize(
    ("run_id", "found"),
    [("", "empty"), ("none", "none"), ("$(RUN)", "'$(RUN)'"), ("night-${RUN}", "'night-${RUN}'")],
)
def test_an_id_that_every_run_has_is_refused_with_the_lines_that_take_the_job_s(
    run_id: str, found: str
) -> None:
    """Kubernetes leaves a variable as it is that the container does not have."""
    with pytest.raises(RunError, match="each run needs an id of its own") as raised:
        check_run("mnist", run_id, 1, 2)
    assert str(raised.value).startswith(f"--rdzv-id is {found}, ")
    assert "--rdzv-id=$(RUN)" in str(raised.value)
    assert "metadata.labels['batch.kubernetes.io/controller-uid']" in str(raised.value)


@pytest.mark.parametrize("run_id", ["two words", "x" * 65, "ü", "a\nb"])
def test_an_id_that_records_cannot_have_is_refused(run_id: str) -> None:
    with pytest.raises(RunError, match="at most 64 printable ASCII characters"):
        check_run("mnist", run_id, 1, 2)


def test_a_run_for_which_each_write_would_go_to_too_many_names_the_operator() -> None:
    assert check_run("mnist", "r", 1, 128) == Run("mnist", "r", 1, 128)
    with pytest.raises(RunError, match=r"at most 128 pods.*needs the operator: create an ElasticJob"):
        check_run("mnist", "r", 1, 129)
    with pytest.raises(RunError, match="--nnodes is 3:2"):
        check_run("mnist", "r", 3, 2)


def test_no_elasticjob_has_a_lease_or_a_label_of_a_run() -> None:
    """Of no two names; a job's may be longer than the run's and end like it."""
    for job in ("mnist", "mnist-peers", "mnist.peers", "peers"):
        if names.is_job_name(job):
            assert round_lease("mnist") not in (names.round_lease(job), names.members_lease(job))
    assert not names.is_job_name("mnist.peers")
    assert not names.is_job_name(round_lease("mnist"))
    assert names.JOB_LABEL != RUN_LABEL


def test_a_pod_whose_lease_could_be_a_round_s_is_refused() -> None:
    check_pod("mnist-0")
    with pytest.raises(RunError, match="no pod's name may end in -round"):
        check_pod(round_lease("mnist"))
