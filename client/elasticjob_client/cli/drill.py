"""The command ``drill``: makes a failure and reports what it cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.operators import leads, operator_namespace
from elasticjob_client.cli.options import as_json, confirm, connected, examples, job_name, now, output
from elasticjob_client.cli.seconds import Seconds
from elasticjob_client.errors import ClientError, translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticjob_client import Jobs
    from elasticjob_client.explain.drill import Cost, Takeover
    from elasticjob_client.resource import ElasticJob


def _target(_: click.Context, __: click.Parameter, value: str) -> str:
    """Raises BadParameter for what is neither a rank, nor a node, nor the operator."""
    from elasticjob_client.explain import drill as explain_drill

    try:
        explain_drill.target(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.command(
    "drill",
    short_help="Kill a pod and measure the recovery",
    epilog=examples(
        "elasticjob drill mnist --kill rank:0",
        "elasticjob drill mnist --kill node:gpu-7 --yes",
        "elasticjob drill mnist --kill operator",
    ),
)
@job_name
@click.option(
    "--kill",
    required=True,
    callback=_target,
    metavar="rank:R|node:NAME|operator",
    help="The pod of a group rank, all of the job's pods on a node, or the leading operator.",
)
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the recovery.",
)
@operator_namespace
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output
@connected
def drill(
    jobs: Jobs, name: str, kill: str, timeout: float, operator_namespace: str, yes: bool, output: str
) -> None:
    """Kill a job's pods without a grace period, and report what the loss cost.

    The pods are deleted; nodes stay untouched. The job loses the steps since its last checkpoint, and the
    loss is charged to the account `preemption`.

    Killing the operator should not interrupt training, but it affects all jobs of that operator.
    """
    try:
        if kill == "operator":
            found: Cost | Takeover = _operator(jobs, name, operator_namespace, timeout, yes)
        else:
            found = _members(jobs, name, kill, timeout, yes)
    except ValueError as error:
        raise ClientError(str(error)) from error
    except TimeoutError as error:
        raise ClientError(f"{error}; waited {timeout:g} s") from error
    if output == "json":
        as_json(found)
    else:
        click.echo("\n".join(found.sentences))


def _members(jobs: Jobs, name: str, kill: str, timeout: float, yes: bool) -> Cost:
    from elasticjob_client.explain import drill as explain_drill

    job = jobs.get(name)
    pods = explain_drill.victims(job, jobs.pods(name), kill)
    names = ", ".join(pod.name for pod in pods)
    if not yes:
        confirm(f"kill {names} of {name}?")
    assert job.status
    number = job.status.current_round.number
    for pod in pods:
        jobs.kill(pod)
    click.echo(f"killed {names}; waiting until {name} trains again", err=True)
    after = _waited(
        jobs, name, lambda now: explain_drill.recovered(now, number, pods), timeout, "has not recovered"
    )
    return explain_drill.cost(after, number, pods)


def _waited(
    jobs: Jobs, name: str, until: Callable[[ElasticJob], bool], timeout: float, otherwise: str
) -> ElasticJob:
    """Raises TimeoutError with what the job has not done, and where it is."""
    from elasticjob_client.waiting import NotYet

    try:
        return jobs.wait(name, until, timeout)
    except NotYet as error:
        raise TimeoutError(f"{name} {otherwise} yet: {error.state}") from error


def _operator(jobs: Jobs, name: str, namespace: str, timeout: float, yes: bool) -> Takeover:
    from lightkube.resources.core_v1 import Pod as CorePod

    from elasticjob_client.explain import drill as explain_drill
    from elasticjob_client.explain.checks import leading

    explain_drill.must_train(jobs.get(name))
    fresh = leading(leads(jobs, namespace), now())
    if not fresh:
        raise ValueError(
            f"no operator leads in namespace {namespace}: `elasticjob doctor` tells more; "
            "--operator-namespace names another"
        )
    holder = fresh[0].holder
    pod = explain_drill.pod_of(holder)
    if not yes:
        confirm(f"kill {namespace}/{pod}, the operator of all jobs?")
    before, began = jobs.get(name), time.monotonic()
    with translated_errors(f"delete pod {namespace}/{pod} (the operator that leads)", jobs.server):
        jobs.client.delete(CorePod, pod, namespace=namespace, grace_period=0)
    click.echo(f"killed {pod}; waiting until another operator leads, and {name} goes on", err=True)
    successor = _next_leading_operator(jobs, namespace, holder, began + timeout)
    seconds = time.monotonic() - began
    after = _waited(jobs, name, lambda job: explain_drill.goes_on(before, job), timeout, "has not gone on")
    return explain_drill.takeover(before, after, holder, successor, seconds)


def _next_leading_operator(jobs: Jobs, namespace: str, before: str, deadline: float) -> str:
    from elasticjob_client.explain.checks import leading
    from elasticjob_client.on_threads import POLL_SECONDS

    while True:
        for one in leading(leads(jobs, namespace), now()):
            if one.holder != before:
                return one.holder
        if time.monotonic() > deadline:
            raise TimeoutError(f"no other operator leads in namespace {namespace}")
        time.sleep(POLL_SECONDS)
