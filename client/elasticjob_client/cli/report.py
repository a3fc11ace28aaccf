"""The command ``report``: one file, a page or a picture, that needs nothing else: to be kept or passed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.options import as_json, connected, job_name, now
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client.jobs import Jobs


@click.command("report")
@job_name
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to; a name that ends with .png makes a picture. Otherwise JOB.html.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["html", "png", "json"]),
    help="A page, a picture (JOB.png), or JSON to stdout.",
)
@connected
def report(jobs: Jobs, name: str, file: Path | None, output: str | None) -> None:
    """Write a page or picture with rounds and pods over time, where the time went, and losses by node."""
    from elasticjob_client.cli import picture
    from elasticjob_client.cli.page import page
    from elasticjob_client.tell import report as told

    try:
        found = told.report(jobs.get(name), jobs.pods(name), now())
    except ValueError as error:
        raise ClientError(str(error)) from error
    if output == "json":
        as_json(found)
        return
    kind = output or ("png" if file and file.suffix.lower() == ".png" else "html")
    target = file or Path(f"{name}.{kind}")
    try:
        if kind == "png":
            picture.write(found, target)
        else:
            target.write_text(page(found))
    except OSError as error:
        raise ClientError(f"cannot write {target}: {error.strerror}") from error
    click.echo(f"wrote {target}")
