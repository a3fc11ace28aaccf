"""Commands that change a job: scale, suspend, resume, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.options import as_json, confirm, connected, job_name, output

if TYPE_CHECKING:
    from elasticjob_client import Jobs


class WithNumber(click.Command):
    """A negative number looks like an option: say what is expected."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name.lstrip("-").isdecimal():
                raise
            text = f"{error.option_name} is no number of pods: expected 1 or more, or `elasticjob suspend`"
            raise click.BadParameter(text, ctx, param_hint="'REPLICAS'") from error


@click.command("scale", cls=WithNumber, short_help="Set the number of pods")
@job_name
@click.argument("replicas", type=click.IntRange(min=1))
@output
@connected
def scale(jobs: Jobs, name: str, replicas: int, output: str) -> None:
    """Set the number of pods to REPLICAS.

    Workers restart at the new size. REPLICAS must be within minReplicas and maxReplicas, where set.
    """
    before = jobs.get(name).spec.replicas
    job = jobs.scale(name, replicas)
    _done(job.to_dict(), f"{name}: {before} to {job.spec.replicas} replicas", output)


@click.command("suspend", short_help="Delete the pods, keep the job")
@job_name
@output
@connected
def suspend(jobs: Jobs, name: str, output: str) -> None:
    """Delete the pods and keep the job's state; `resume` continues from the last checkpoint."""
    _done(jobs.suspend(name).to_dict(), f"{name}: suspended", output)


@click.command("resume", short_help="Continue a suspended job")
@job_name
@output
@connected
def resume(jobs: Jobs, name: str, output: str) -> None:
    """Continue a suspended job from its last checkpoint."""
    _done(jobs.resume(name).to_dict(), f"{name}: resumed", output)


@click.command("delete", short_help="Delete a job, its pods and their logs")
@job_name
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if it is training.")
@output
@connected
def delete(jobs: Jobs, name: str, yes: bool, output: str) -> None:
    """Delete a job with its pods and their logs. Asks if it has not ended."""
    job = jobs.get(name)
    if not job.ended and not yes:
        confirm(f"{name} has not ended ({job.state or 'no status'}); delete it?")
    jobs.delete(name)
    _done(job.to_dict(), f"{name}: deleted", output)


def _done(body: object, text: str, output: str) -> None:
    if output == "json":
        as_json(body)
    else:
        click.echo(text)
