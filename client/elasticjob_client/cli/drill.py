"""The command ``drill``: makes a failure and reports what it cost."""

from __future__ import annotations

import click

from elasticjob_client.cli.options import as_json, connected, job_name, output
from elasticjob_client.errors import ClientError
from elasticjob_client.jobs import Jobs
from elasticjob_client.tell import drill as told_of
from elasticjob_client.tell.drill import recovered


@click.command("drill")
@job_name
@click.option(
    "--kill", required=True, metavar="rank:R|node:NAME", help="The pod of a group rank, or all on a node."
)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds until the job must train again.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output
@connected
def drill(jobs: Jobs, name: str, kill: str, timeout: float, yes: bool, output: str) -> None:
    """Kill pods of a job of yours, without a grace period, and report what the loss cost.

    The pods are deleted; the nodes themselves stay untouched. It is charged like any other deleted pod.
    """
    job = jobs.get(name)
    try:
        pods = told_of.victims(job, jobs.pods(name), kill)
    except ValueError as error:
        raise ClientError(str(error)) from error
    names = ", ".join(pod.name for pod in pods)
    if not yes:
        click.confirm(f"kill {names} of {name}?", abort=True, err=True)
    assert job.status
    number = job.status.current_round.number
    for pod in pods:
        jobs.kill(pod)
    click.echo(f"killed {names}; waiting until {name} trains again", err=True)
    try:
        after = jobs.wait(name, lambda now: recovered(now, number), timeout)
    except TimeoutError as error:
        raise ClientError(f"{error}; waited {timeout:.0f} s") from error
    found = told_of.cost(after, number, pods)
    if output == "json":
        as_json(found)
    else:
        click.echo("\n".join(found.sentences))
