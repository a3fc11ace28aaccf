"""Commands that read: list, status, why, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.log_end import LINES, end_of_log
from elasticjob_client.cli.options import as_json, connected, job_name, now, output
from elasticjob_client.errors import ClientError, Forbidden, NotFound, NotInstalled

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.explain.why import Story


@click.command("list", short_help="List jobs with state and progress")
@click.option("-A", "--all-namespaces", is_flag=True, help="List jobs of all namespaces.")
@output
@connected
def list_jobs(jobs: Jobs, all_namespaces: bool, output: str) -> None:
    """List jobs with their state, members, round and progress. Runs without an operator are among them."""
    from elasticjob_client.cli import partial_results, screen
    from elasticjob_client.cli.runs import all_runs
    from elasticjob_client.explain import listing, runs

    time, hidden = now(), None
    try:
        found = all_runs(jobs, all_namespaces)
    except Forbidden as error:
        found, hidden = [], error
    try:
        rows = [listing.row(job, time) for job in partial_results.refreshed(jobs, jobs.all(all_namespaces))]
    except (NotInstalled, Forbidden) as error:
        if not found:
            raise (hidden if hidden and isinstance(error, NotInstalled) else error) from None
        rows = []
    rows += [runs.row(run, time) for run in found]
    if output == "json":
        as_json({"items": rows})
    elif rows:
        screen.show(screen.listing(rows, all_namespaces))
    else:
        click.echo("no ElasticJobs" + ("" if all_namespaces else f" in namespace {jobs.namespace}"), err=True)
        if hidden:
            click.echo(str(hidden), err=True)


@click.command("status", short_help="Show a job's pods, rounds and restarts")
@job_name
@output
@connected
def job_status(jobs: Jobs, name: str, output: str) -> None:
    """Show a job's pods, its rounds with cause and cost, its restarts, and what to do next."""
    from elasticjob_client.cli import partial_results, screen
    from elasticjob_client.cli.runs import run_of
    from elasticjob_client.explain import runs, status

    try:
        job = jobs.refreshed(jobs.get(name))
    except (NotFound, NotInstalled, Forbidden) as absent:
        found = runs.status(run_of(jobs, name, absent), now())
    else:
        found = status.status(job, partial_results.pods(jobs, name) or (), now())
    if output == "json":
        as_json(found)
    else:
        screen.show(screen.status(found))


@click.command("why", short_help="Explain the last failure")
@job_name
@click.option("--round", "number", type=int, help="Explain why this round ended instead.")
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=LINES,
    show_default=True,
    help="Lines of the failed pod's log to show.",
)
@output
@connected
def tell_why(jobs: Jobs, name: str, number: int | None, lines: int, output: str) -> None:
    """Explain the last failure: round, pod, node, charge, cost, and the end of the log."""
    from elasticjob_client.cli import partial_results
    from elasticjob_client.cli.runs import run_of
    from elasticjob_client.explain import runs, why

    try:
        job = jobs.get(name)
    except (NotFound, NotInstalled, Forbidden) as absent:
        run = run_of(jobs, name, absent)
        if number is not None:
            raise ClientError(f"{name} runs without an operator: its Leases keep no history") from None
        _show(runs.why(run), output)
        return
    pods = partial_results.pods(jobs, name)
    try:
        ended = why.ended_round(job, number)
    except ValueError as error:
        raise ClientError(str(error)) from error
    failure = why.failure_of(job, ended, number is not None)
    pod, log, missing = why.pod_to_read(failure, pods or ()), list[str](), list[str]()
    try:
        log = end_of_log(jobs, pod, failure, lines) if pod and lines else []
    except ClientError as error:
        assert pod
        missing.append(partial_results.no_log(pod, error))
    _show(why.why(job, pods, log, now(), number, missing), output)


def _show(found: Story, output: str) -> None:
    from elasticjob_client.cli import screen

    if output == "json":
        as_json(found)
    else:
        screen.show(screen.story(found))


@click.command("events", short_help="List a job's Events")
@job_name
@click.option("--pods", "with_pods", is_flag=True, help="Add the Events of the job's pods.")
@output
@connected
def show_events(jobs: Jobs, name: str, with_pods: bool, output: str) -> None:
    """List the job's Events, oldest first. Kubernetes keeps them for about an hour."""
    from elasticjob_client.cli import partial_results, screen

    found = jobs.events(name, (partial_results.pods(jobs, name) if with_pods else None) or ())
    if output == "json":
        as_json({"items": found})
    elif found:
        screen.show(screen.events(found, now(), with_pods))
    else:
        click.echo(
            f"no Events of {name}: they are kept for an hour or so; rounds: `elasticjob status {name}`",
            err=True,
        )
