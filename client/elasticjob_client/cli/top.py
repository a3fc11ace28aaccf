"""The command ``top``: jobs, or one job, on the whole screen, looked at again and again."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.options import as_json, connected, now, optional_job_name, output
from elasticjob_client.cli.seconds import Seconds
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.explain.top import TopJob, TopRow

_LIST_BAR = 20
_JOB_BAR = 60
_BESIDE_BAR = 32
"""Columns beside the bar of a job, for the times at its ends."""


@click.command("top", short_help="Watch one job or all jobs live")
@optional_job_name
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option(
    "--interval",
    type=Seconds(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval.",
)
@output
@connected
def top(jobs: Jobs, name: str | None, all_namespaces: bool, interval: float, output: str) -> None:
    """Watch all jobs live, or one job with its members and a timeline of its rounds. q quits.

    With -o json, the current state is printed once.
    """
    from elasticjob_client.cli import live, partial_results
    from elasticjob_client.explain import top as explain_top

    if name and all_namespaces:
        raise click.UsageError("JOB and --all-namespaces exclude each other")

    looked = False

    def look() -> list[TopRow] | TopJob:
        nonlocal looked
        if name:
            room = get_terminal_size().columns - _BESIDE_BAR
            pods = partial_results.pods(jobs, name, quiet=looked) or ()
            looked = True
            return explain_top.one(jobs.refreshed(jobs.get(name)), pods, now(), max(1, min(_JOB_BAR, room)))
        return explain_top.rows(partial_results.refreshed(jobs, jobs.all(all_namespaces)), now(), _LIST_BAR)

    if output == "json":
        found = look()
        as_json(found if isinstance(found, explain_top.TopJob) else {"items": found})
        return
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        again = f"elasticjob status {name}" if name else "elasticjob list"
        raise ClientError(f"`top` draws on a terminal, and this is none: use `{again}`, or -o json")
    live.show(look, None if all_namespaces else jobs.namespace, interval)
